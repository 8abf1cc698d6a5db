"""Where Dask comes from, and how its work is waited for."""
