"""Rounds on clusters that are not here: a discrete-event simulation of what executors do."""
