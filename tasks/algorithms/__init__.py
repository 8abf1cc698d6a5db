"""The named algorithms, a function each: its signature is the only definition of its options."""
