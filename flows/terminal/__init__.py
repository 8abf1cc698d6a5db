"""What all subcommands share: arguments, options made of configurations, and how output is printed."""
