"""How maps are computed: one partition at a time, several stacked as one network, or one on several ranks."""
