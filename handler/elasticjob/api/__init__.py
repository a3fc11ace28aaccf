"""The Kubernetes API as the handler needs it: one Lease watched, one Lease written, urllib3 alone."""
