"""The `roundweave` command line: its options, tables and one-line errors."""
