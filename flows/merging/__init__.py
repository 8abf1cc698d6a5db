"""The flow that merges networks which were trained apart."""
