"""What runs in the training process: reports of steps, requests to stop, stacks. It imports nothing heavy."""
