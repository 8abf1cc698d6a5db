"""What is kept of a run: values, the zarr hierarchy, and the notebook's view of it."""
