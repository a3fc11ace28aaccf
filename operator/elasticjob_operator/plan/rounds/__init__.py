"""A round begins, runs and ends."""
