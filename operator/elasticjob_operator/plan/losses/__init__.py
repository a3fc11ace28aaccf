"""Which members are lost and why, and which nodes new pods avoid; ``kernel`` runs the round kernel."""
