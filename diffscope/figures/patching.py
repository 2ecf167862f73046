"""The figure of patches: what each head, or each path to a head, carries of what differs between two prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import xarray as xr

from diffscope.errors import check_choice
from diffscope.figures.declaration import Drawing, Printing, figure
from diffscope.figures.inputs import check_defined, estimates_of, the_one
from diffscope.figures.values import cells
from diffscope.numbers import minus, two_figures

if TYPE_CHECKING:
    from diffscope.readings.reading import Reading


@figure()
def patching(subject: Reading | xr.Dataset, *, quantity: str = "change", **printing: Unpack[Printing]) -> Drawing:
    """Draw how the answer changes when one head, or one path to a head, is patched with what it is on another prompt.

    Cells are heads by layer, a panel for each thing that is patched or each path, in nats of the answer's lead over the other
    prompt's answer. Heads that stand in for each other change little one by one.

    Parameters
    ----------
    subject : Reading or its estimates
        Of :func:`diffscope.readings.patched_heads` or :func:`diffscope.readings.patched_paths`.
    quantity : {"change", "share"}
        In nats, or as a part of what the other prompt's lead differs by.

    Returns
    -------
    Figure
        ``value`` (panel, y, x): y layers, x heads.

    Raises
    ------
    DiffscopeError
        It is of something else, there is no such quantity, or all is undefined.

    Examples
    --------
    >>> import diffscope
    >>> from diffscope import figures, readings
    >>> text, source = (f"Magic numbers. Paris {number}. Rome 2174. Paris" for number in (7421, 9053))
    >>> figures.patching(readings.patched_heads(diffscope.load("mini-diff"), text, source, what=["A1", "A2"]))
    <diffscope figure 'patching' of value (panel: 2, y: 3, x: 2)>
    """
    check_choice("quantity", quantity, ("change", "share"))
    name, table = the_one(estimates_of(subject, "lead_of_source", "diffscope.readings.patched_heads(scope, prompt, source)"))
    values = table[quantity].dropna("what", how="all")
    check_defined(table[quantity])
    values = values.assign_attrs(long_name=f"{quantity} of the lead")
    drawing = cells.drawing(values.rename(what="patched"), panels="patched")
    receiver = table.attrs.get("receiver")
    what = f"one path to {receiver} is patched" if receiver else "one head is patched"
    lead, other = (minus(two_figures(float(table[each]))) for each in ("lead", "lead_of_source"))
    caption = (
        f"Change of the answer's lead over the other prompt's answer where {what} from that prompt"
        f"{', of the difference between both prompts' if quantity == 'share' else ', in nats'}. The lead is {lead} nats, and "
        f"{other} on the other prompt."
    )
    return drawing.described(caption, model=name)
