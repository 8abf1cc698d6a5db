"""What a run tells while it works."""
