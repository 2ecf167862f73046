"""What tests read off models."""
