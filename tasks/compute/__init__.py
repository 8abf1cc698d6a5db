"""How maps are computed: one partition after the other, unless a plugin has another mapper."""
