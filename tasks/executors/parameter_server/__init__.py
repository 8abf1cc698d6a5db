"""Executors of a parameter server: who takes a turn, and in which order updates are taken in."""
