"""Long work in jobs that survive being killed, on this machine or on many."""
