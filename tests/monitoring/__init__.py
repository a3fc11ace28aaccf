"""Alerts and dashboard with a real Prometheus: ``make test-monitoring``."""
