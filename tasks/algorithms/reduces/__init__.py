"""Reduces, which combine many updates into one."""
