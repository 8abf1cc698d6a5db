"""What is done with runs as they lie there: verifying them, what is kept of them, in how many files, copies."""
