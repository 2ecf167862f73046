"""Long work in pieces that survive being killed, here or on many machines."""
