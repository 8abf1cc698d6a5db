"""How long a test waits for what must come at last: a limit for what hangs, never a measure of what is slow.

A machine that does much else at once has taken over a minute for what takes it ten seconds alone.
"""

PATIENCE = 600.0
"""Seconds."""
