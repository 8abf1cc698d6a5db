"""What stored rounds prove: replaying them, reducing them again, comparing runs."""
