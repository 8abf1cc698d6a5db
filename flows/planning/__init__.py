"""Which way of training a run learns the most in the same seconds: raced, and chosen."""
