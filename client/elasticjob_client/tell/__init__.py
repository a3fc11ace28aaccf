"""What is concluded from a job, its pods and its Events: pure functions from data to data and sentences."""
