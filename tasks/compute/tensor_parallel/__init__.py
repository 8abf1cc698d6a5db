"""One model's weights over a team of ranks."""
