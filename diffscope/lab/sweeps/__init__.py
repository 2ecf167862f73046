"""Measuring many prompts of many models."""
