"""The subcommands, a file for those that belong together."""
