"""The client: what it concludes and shows, without a cluster."""
