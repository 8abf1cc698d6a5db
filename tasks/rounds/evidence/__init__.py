"""Stored rounds as evidence: replay them and compare the bits, or reduce them again with other parts."""
