"""Prove that the maps that a capture rebuilds are those that the model used, or name the mistake."""
