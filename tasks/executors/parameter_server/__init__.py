"""Parameter servers for each executor: which partition is mapped when, and in which order pushes are applied."""
