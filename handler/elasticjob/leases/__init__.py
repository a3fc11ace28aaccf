"""In the agent: the Lease of this pod is written, and the round's is read."""
