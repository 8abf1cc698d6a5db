"""Read-only views of stored runs and rounds for notebooks, with tables and plots."""
