"""Features that hang on the kernel, a folder each; the table names them, and each can be deleted."""
