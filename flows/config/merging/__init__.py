"""What a merge is configured by: its own options, recipes in TOML, and files of mergekit."""
