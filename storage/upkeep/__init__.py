"""What is done with runs as they lie there: verifying them."""
