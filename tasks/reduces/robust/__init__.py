"""Reduces that withstand corrupted updates."""
