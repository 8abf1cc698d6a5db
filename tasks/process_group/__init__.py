"""Process groups: ranks that stay for a whole run and exchange values directly, for rounds of milliseconds."""
