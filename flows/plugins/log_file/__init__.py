"""Appends a line of JSON to a file for each commit and event of trainings."""
