"""The linked view of one head's maps as a widget: the module of :mod:`diffscope.views.attention` in anywidget's form."""

from __future__ import annotations

import anywidget
import traitlets

from diffscope.capture.capture import Capture
from diffscope.errors import check_index
from diffscope.views import attention as attention_view

RENDER = """
export default {
  render({ model, el }) {
    const view = mount(el, model.get("data"), (name, value) => model.send({ name, value }));
    const update = () => view.update(model.get("data"));
    model.on("change:data", update);
    return () => (model.off("change:data", update), view.leave());
  },
};
"""


class AttentionWidget(anywidget.AnyWidget):
    """A1, A2, λ·A2 and D of one head, linked: zoom, crosshair, locked tokens; arrow keys move to the neighbouring head.

    Attributes
    ----------
    layer, head : int
        Which head is shown; set them to show another.
    locked : dict of str to list of int
        Tokens that are locked in the view: queries under "rows", keys under "columns".
    data : bytes
        What the browser draws: :func:`diffscope.views.attention.buffer`.
    """

    _esm = attention_view.COMPONENT.module + RENDER
    layer = traitlets.Int()
    head = traitlets.Int()
    locked = traitlets.Dict({"rows": [], "columns": []}, read_only=True)
    data = traitlets.Bytes().tag(sync=True)

    def __init__(self, capture: Capture, layer: int, head: int) -> None:
        self._capture = capture.only()
        self._place: dict = {}  # the window that the view asked for
        super().__init__(layer=layer, head=head)
        self._draw()
        self.observe(self._draw, ["layer", "head"])
        self.on_msg(self._receive)

    def _heads(self, layer: int) -> int:
        """Return how many heads a layer has."""
        return self._capture.layer(layer).n_heads

    @traitlets.validate("layer")
    def _layer_is_there(self, proposal: dict) -> int:
        check_index("layer", proposal["value"], self._capture.layer_numbers)
        return proposal["value"]

    @traitlets.validate("head")
    def _head_is_there(self, proposal: dict) -> int:
        check_index("head", proposal["value"], range(self._heads(self.layer)))
        return proposal["value"]

    def _draw(self, _change: dict | None = None) -> None:
        most = self._heads(self.layer) - 1
        if self.head > most:
            self.head = most  # which is drawn, then
            return
        attention = self._capture.layer(self.layer)
        self.data = attention_view.buffer(
            self._capture,
            self.layer,
            self.head,
            window=attention_view.window_of(self._place, attention.n_queries, attention.n_keys),
            lines=True if self._place.get("lines") else None,
        )

    def _receive(self, _widget: object, message: dict, _buffers: list) -> None:
        """Do what the view asks for, or note what it tells."""
        value = message.get("value")
        if message.get("name") == "locked":
            self.set_trait("locked", {axis: [int(token) for token in value[axis]] for axis in ("rows", "columns")})
        elif message.get("name") == "window":
            self._place = value
            self._draw()
        elif message.get("name") == "head":
            with self.hold_trait_notifications():  # a head that the layer shown before may lack
                self.layer, self.head = int(value["layer"]), int(value["head"])

    def _repr_mimebundle_(self, **kwargs):
        """Return the widget, and the view as a page for programs without widgets."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        return data | {"text/html": attention_view.framed(self._capture, self.layer, self.head)}, metadata
