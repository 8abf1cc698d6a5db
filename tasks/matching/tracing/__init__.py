"""How a network is traced to the units of its tensors."""
