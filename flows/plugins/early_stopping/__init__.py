"""Ends training early: at a target, or where scores are no longer better."""
