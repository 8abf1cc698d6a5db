"""The search for the order of units in which networks are most alike."""
