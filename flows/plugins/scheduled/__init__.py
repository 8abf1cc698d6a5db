"""Trains a configuration again and again: dated names, and what to do where nothing is new."""
