"""Exports of stored runs: their numbers for experiment trackers, and a report as one HTML page."""
