"""What the pod template says about containers, accelerators and the command that starts torchrun."""
