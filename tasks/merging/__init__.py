"""The parts of a merge that run on workers, and the storage of its result."""
