"""The protocol without I/O: the participant's state machine, the judge of beats, and the round planner."""
