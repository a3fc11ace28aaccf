"""What the pod template says of torchrun, containers and accelerators."""
