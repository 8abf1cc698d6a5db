"""How maps are computed: one partition at a time, several side by side, or one by several ranks."""
