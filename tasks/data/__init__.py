"""Examples: where they come from, and how they are split."""
