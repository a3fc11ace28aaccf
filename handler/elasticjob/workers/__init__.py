"""In the agent: the processes that torch started for a round, and how they end."""
