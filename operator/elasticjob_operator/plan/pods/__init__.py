"""Which pods are created, replaced and deleted; which of them are ignored."""
