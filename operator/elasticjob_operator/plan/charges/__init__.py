"""Which account a failure is charged to, by which failure rule, and how long the next try waits."""
