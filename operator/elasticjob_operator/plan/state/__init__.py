"""The data that rules read and write: the job, what was observed, the status, one pass."""
