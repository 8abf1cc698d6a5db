"""The Prefect flow that trains in rounds."""
