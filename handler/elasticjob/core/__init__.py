"""What a member of a round decides, without I/O: the state machine of a participant, the monitors of
heartbeats and of progress, the schedule of renewals, pauses.

What is decided for all members is in ``rounds``.
"""
