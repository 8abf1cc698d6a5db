"""Stored runs for others: numbers for trackers of experiments, and one page that tells of a run."""
