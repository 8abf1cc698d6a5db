"""The subcommands; those that belong together share a module."""
