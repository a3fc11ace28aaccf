"""In the training process: reports, requests to stop, stacks. Imports nothing heavy."""
