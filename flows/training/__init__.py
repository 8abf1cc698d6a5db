"""The flow that trains in rounds."""
