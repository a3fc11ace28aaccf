"""How a round forms, runs, makes progress and ends; when the next one is safe (``fencing``)."""
