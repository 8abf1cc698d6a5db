"""Which way of distributing a run's work takes the least time: measured, predicted, chosen."""
