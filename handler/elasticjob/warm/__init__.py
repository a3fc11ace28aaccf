"""Interpreters that have imported torch before there is a round, and what decides on them."""
