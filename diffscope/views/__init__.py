"""Interactive views on canvas: the maps of a head, all heads, the tokens; for the dashboard, notebooks and pages of their own."""
