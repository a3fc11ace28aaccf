"""In the agent, while a round is formed and runs: who is there, who falls silent, how far training is."""
