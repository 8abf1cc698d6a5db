"""The zarr hierarchy of a run: which arrays there are, their documents and their chunks."""
