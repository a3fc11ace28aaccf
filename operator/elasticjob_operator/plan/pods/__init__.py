"""Which pods there are to be."""
