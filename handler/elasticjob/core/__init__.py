"""The member's side of the protocol, without I/O: the participant's state machine, and the judges of
heartbeats and of progress.
"""
