"""What a machine does in a second, measured where maps run; and rounds on clusters that are not here."""
