"""A discrete-event simulation of executors, for clusters that are not at hand."""
