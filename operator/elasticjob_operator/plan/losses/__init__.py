"""Who is lost, why, and which nodes are avoided for it."""
