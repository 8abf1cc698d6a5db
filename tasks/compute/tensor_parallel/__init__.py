"""One model's weights over several ranks."""
