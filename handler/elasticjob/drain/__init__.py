"""In the agent: all workers of a round stop at one step."""
