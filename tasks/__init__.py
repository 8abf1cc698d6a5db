"""What a round is made of: the algebra, the data, the networks, the maps and reduces, and who runs them."""
