"""Kernels: attention from stock ones, and row statistics from our own."""
