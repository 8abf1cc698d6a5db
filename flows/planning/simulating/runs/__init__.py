"""Runs as they go on: machines at work, tasks, ranks, a server."""
