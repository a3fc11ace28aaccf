"""What commands say of a job: conclusions from the job, its pods and its Events, as data and text. Pure."""
