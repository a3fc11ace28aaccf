"""Jobs in a queue of Kueue: how many pods may live, and what is written into its Workloads."""
