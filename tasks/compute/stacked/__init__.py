"""Replicas of a network that are trained side by side, each as if it were alone."""
