"""Carries out a plan: every write to the API server. ``apply`` has the order."""
