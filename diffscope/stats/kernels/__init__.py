"""Kernels: attention by those of torch, with its log-sum-exp, and row statistics by our own in Triton."""
