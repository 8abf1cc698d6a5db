"""Searches for the order of units that makes networks most alike."""
