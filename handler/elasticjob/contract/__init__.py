"""What participants, operator and client agree on: names, records, commands. No I/O, no dependencies."""
