"""The zarr hierarchy of a run: its arrays, the ``zarr.json`` documents that describe them, and their chunks."""
