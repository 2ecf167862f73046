"""Compute effective ranks of maps, exactly from all singular values or estimated from products with the map."""
