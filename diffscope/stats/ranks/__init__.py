"""Effective ranks of maps: exact from all singular values, or estimated from products with the map."""
