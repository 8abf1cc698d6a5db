"""Sources of examples: files, data sets that come with libraries, and users' functions."""
