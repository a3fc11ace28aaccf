"""What the operator and the participants agree on: names and records. No I/O, no dependencies."""
