"""What the rules read and write: the job, its status, and what they wait for."""
