"""Chooses the strategy of training that learns the most in the same time, by a race."""
