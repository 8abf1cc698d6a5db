"""Decides, before any process is started, what a configuration trains; then what its examples decide."""
