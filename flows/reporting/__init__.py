"""How a run reports its progress: to a progress bar, to Prefect and to other listeners."""
