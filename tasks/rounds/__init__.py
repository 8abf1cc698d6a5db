"""What a round does, step by step, in whatever process."""
