"""Where a round's work runs: one plan, several executors, the same bits."""
