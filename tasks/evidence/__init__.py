"""Stored rounds as evidence: the steps of a round again, on what is stored, and what became of that."""
