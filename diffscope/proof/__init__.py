"""Whether the maps that a capture rebuilds are those that the model used; and if not, why."""
