"""Which account pays for an end, and when the next try may begin."""
