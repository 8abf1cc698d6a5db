"""Maps, which compute a partition's update by backprop over its examples."""
