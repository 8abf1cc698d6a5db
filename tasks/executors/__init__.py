"""Executors run the rounds of a plan: in this process, by Dask's tasks, or by ranks. All give the same bits."""
