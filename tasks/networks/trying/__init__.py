"""What is tried of a network before a run begins: how it fits the examples, and whether its copies are it."""
