"""Changes that people or the cluster ask for: another size, a suspension, a deletion, a node that goes."""
