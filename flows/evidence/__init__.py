"""Uses of stored rounds besides resuming: replaying, recombining, comparing and forking them."""
