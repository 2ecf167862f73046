"""Measurements that need more than rows as they are: noise is injected, maps are taken apart into what explains them.

Each is a function of a capture, or of an opened model, and gives a labelled Dataset.
"""
