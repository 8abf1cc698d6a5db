"""Examples: their sources, and how they are split into partitions."""
