"""The store of a run, round by round: tensors, numbers, commit records, and the lease of its writer."""
