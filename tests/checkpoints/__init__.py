"""The directory of checkpoints under kills, pauses, errors and full disks, in virtual time."""
