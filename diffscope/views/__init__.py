"""Interactive views on canvas: the maps of a head, all heads, the tokens; for the dashboard, notebooks and pages of their own.

``views.view(capture)`` shows the maps of one head in a notebook, to move in.
"""

from diffscope.views.notebook import AttentionPage, view

__all__ = ["AttentionPage", "view"]
