"""What the operator sees: its client, watches and caches, and whether they can be trusted."""
