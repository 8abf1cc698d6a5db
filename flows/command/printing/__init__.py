"""What the command prints: a bar while it works, and tables."""
