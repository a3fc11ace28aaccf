"""Changes that people or the cluster ask for: another size, a drain, a suspension, a deletion."""
