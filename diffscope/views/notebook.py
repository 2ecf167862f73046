"""The linked view of one head's maps in a notebook: a widget where anywidget is installed, and a page that needs no kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diffscope.capture.capture import Capture
from diffscope.views.attention import framed

if TYPE_CHECKING:
    from diffscope.views.widget import AttentionWidget


@dataclass(frozen=True)
class AttentionPage:
    """The view of one head as a page within a notebook; it needs no kernel."""

    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        return self.html


def view(cap: Capture, *, layer: int | None = None, head: int = 0) -> AttentionWidget | AttentionPage:
    """Show A1, A2, λ·A2 and D of one head in a notebook, linked: zoom, crosshair, locked tokens.

    Parameters
    ----------
    cap : Capture
        Of one prompt.
    layer : int, optional
        As the model numbers it, by default its first.
    head : int

    Returns
    -------
    AttentionWidget or AttentionPage
        Where anywidget is installed the widget, which fetches exact values and moves from head to head: its ``layer`` and
        ``head`` can be read, set and observed, ``locked``, tokens by "rows" and "columns", read and observed. Otherwise a page
        with this one head.

    Raises
    ------
    DiffscopeError
        There is no such layer or head, or the capture is of several prompts.
    """
    layer = cap.layer_numbers[0] if layer is None else layer
    try:
        from diffscope.views.widget import AttentionWidget
    except ImportError:  # of anywidget, most often
        return AttentionPage(framed(cap, layer, head))
    return AttentionWidget(cap, layer, head)
