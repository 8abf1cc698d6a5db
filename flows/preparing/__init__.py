"""Turns a resolved configuration into a job whose rounds can be run, and locks the run's store for it."""
