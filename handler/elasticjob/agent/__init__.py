"""In torchrun's agent: the rendezvous handler, how it is made, and what it says."""
