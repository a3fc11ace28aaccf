"""Fails at once, on every rank."""

raise ValueError("there is a bug in this script")
