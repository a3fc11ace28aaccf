"""Writes this pod's Lease and reads the round's. Runs in torchrun's agent, in two threads that always run."""
