"""The `roundweave` command: its options, tables and one-line errors."""
