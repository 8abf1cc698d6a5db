"""What decides the bits of results: seeds and settings, the processor, devices, and the dtypes of sums."""
