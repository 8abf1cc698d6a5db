"""The steps of rounds with a pen: reading what they need from the store, and keeping what they gave."""
