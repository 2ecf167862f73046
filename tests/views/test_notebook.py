"""The view in a notebook: the widget answers what its view asks for, and what is saved shows the maps without a kernel."""

import base64
import json
import sys

import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from safetensors.numpy import load

from diffscope import views
from diffscope.errors import DiffscopeError
from diffscope.views import AttentionPage
from diffscope.views import attention as attention_view
from diffscope.views.attention import framed
from tests.buffers import unpacked
from tests.tiny import random_capture

# what a notebook does with a widget's module: a model with its traits, messages sent and changes told
HOST = """async ([module, data]) => {
  const bytes = (text) => new DataView(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
  const told = {};
  window.sent = [];
  window.traits = { data: bytes(data) };
  const model = {
    get: (name) => traits[name],
    send: (message) => sent.push(message),
    on: (event, act) => (told[event] = act),
    off: (event) => delete told[event],
  };
  window.change = (text) => { traits.data = bytes(text); told["change:data"](); };
  const url = URL.createObjectURL(new Blob([module], { type: "text/javascript" }));
  window.leave = (await import(url)).default.render({ model, el: document.querySelector("main") });
}"""


def tell(widget, name, **value):
    """A message as a notebook's view sends it."""
    widget._handle_custom_msg({"name": name, "value": value}, [])


def test_the_view_moves_from_head_to_head_and_tells_what_is_locked(tiny_capture):
    widget = views.view(tiny_capture, layer=1, head=2)
    assert widget.data == attention_view.buffer(tiny_capture, 1, 2)
    seen = []
    widget.observe(lambda change: seen.append((change["name"], change["new"])), ["layer", "head", "locked"])
    last = (tiny_capture.n_layers - 1, tiny_capture.n_heads - 1)
    tell(widget, "head", layer=last[0], head=last[1])
    assert (widget.layer, widget.head) == last and widget.data == attention_view.buffer(tiny_capture, *last)
    tell(widget, "locked", rows=[40], columns=[7, 9])
    assert widget.locked == {"rows": [40], "columns": [7, 9]} and seen[-1] == ("locked", widget.locked)
    widget.layer, widget.head = 0, 0
    assert widget.data == attention_view.buffer(tiny_capture, 0, 0)
    for name, value in (("layer", 99), ("head", -1)):
        with pytest.raises(DiffscopeError, match=f"there is no {name}"):
            setattr(widget, name, value)
    assert (widget.layer, widget.head) == (0, 0)


def test_a_small_window_is_answered_with_exact_values():
    long = random_capture(2000)
    widget = views.view(long)
    assert "detail.D" not in load(widget.data)
    tell(widget, "window", top=1900, left=10, size=200)
    exact = long.map("D", 0, 0, queries=slice(1900, 2000), keys=slice(10, 210))
    np.testing.assert_allclose(unpacked(widget.data, "D", "detail."), exact, rtol=1e-3, atol=1e-7)
    tell(widget, "window", top=0, left=0, size=10**6)
    assert "detail.D" not in load(widget.data)


def test_a_head_that_a_layer_lacks_gives_way_to_its_last():
    ragged = random_capture(20, heads=3, layers=1)
    ragged.layers.append(random_capture(20, heads=1, layers=2).layers[1])
    widget = views.view(ragged, layer=0, head=2)
    tell(widget, "head", layer=1, head=0)
    assert (widget.layer, widget.head) == (1, 0)


def test_without_anywidget_there_is_a_page(tiny_capture, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "diffscope.views.widget", raising=False)
    shown = views.view(tiny_capture, layer=1)
    assert isinstance(shown, AttentionPage) and shown._repr_html_() == framed(tiny_capture, 1, 0)


def test_what_a_notebook_keeps_of_a_view_is_small():
    assert len(framed(random_capture(2048), 0, 0)) < 1_000_000 and len(framed(random_capture(8192), 0, 0)) < 1_000_000


@pytest.mark.browser
def test_a_saved_notebook_shows_the_maps_without_a_kernel(tiny_capture, new_page):
    """What a notebook shows of a value, and keeps, is what its formatter makes of it; one of analyses/ runs in a kernel."""
    shown, _ = DisplayFormatter().format(views.view(tiny_capture, layer=1, head=2))
    assert "application/vnd.jupyter.widget-view+json" in shown and len(json.dumps(shown)) < 1_000_000
    page = new_page(1200, 700)
    page.set_content(f"<!doctype html><body>{shown['text/html']}</body>")
    inside = page.frame_locator("iframe")
    inside.locator("canvas[data-map=D]").wait_for()
    assert "L1H2" in inside.locator("strong").text_content()
    assert page.problems == []


@pytest.mark.browser
def test_the_module_speaks_with_a_notebook(tiny_capture, new_page):
    widget = views.view(tiny_capture, layer=1, head=2)
    page = new_page(1200, 700)
    page.set_content("<!doctype html><main></main>")
    page.evaluate(HOST, [widget._esm, base64.b64encode(widget.data).decode()])
    page.locator("canvas[data-map=D]").wait_for()
    page.get_by_role("application").press("ArrowRight")
    page.get_by_role("application").press("Escape")
    messages = page.evaluate("sent")
    assert messages == [
        {"name": "head", "value": {"layer": 1, "head": 3}},
        {"name": "locked", "value": {"rows": [], "columns": []}},
    ]
    widget._handle_custom_msg(messages[0], [])
    page.evaluate("text => change(text)", base64.b64encode(widget.data).decode())
    assert "L1H3" in page.locator("strong").text_content()
    page.evaluate("leave()")
    assert page.locator("canvas").count() == 0 and page.problems == []
