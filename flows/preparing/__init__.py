"""From a resolved configuration to a job whose rounds can be run, in a store that is held for it."""
