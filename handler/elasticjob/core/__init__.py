"""The member's side of the protocol, without I/O: the participant's state machine, the monitors of heartbeats
and of progress, the schedule of renewals."""
