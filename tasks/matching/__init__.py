"""Merging networks that were trained apart: which hidden units are interchangeable, and how to match them."""
