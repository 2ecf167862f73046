"""What makes an ES module of scripts of this package, and lets it run inside a Streamlit page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

# Streamlit calls the default export again with all new data, and may clean up before it does: the view then stays as it is.
STREAMLIT = """
const triggers = TRIGGERS;
const mounted = new WeakMap();
export default function ({ data, parentElement, setStateValue, setTriggerValue }) {
  if (!data) return;
  const held = mounted.get(parentElement);
  const emit = (name, value) => (triggers.includes(name) ? setTriggerValue : setStateValue)(name, value);
  if (held) {
    clearTimeout(held.leaving);
    held.view.emit = emit;
    held.view.update(data);
  } else {
    const place = document.createElement("div");
    parentElement.append(place);
    mounted.set(parentElement, { view: mount(place, data, emit), leaving: 0 });
  }
  return () => {
    const going = mounted.get(parentElement);
    if (going) going.leaving = setTimeout(() => (going.view.leave(), mounted.delete(parentElement)), 1000);
  };
}
"""


def joined(*scripts: str) -> str:
    """An ES module: what all drawings have in common (``canvases.js``), then scripts of this folder in their order."""
    folder = Path(__file__).parent
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in ("canvases.js", *scripts))


def streamlit_module(module: str, triggers: Sequence[str]) -> str:
    """A module with ``mount(element, data, emit)`` as one of ``st.components.v2``; `triggers` are events that leave no state."""
    return module + STREAMLIT.replace("TRIGGERS", json.dumps(list(triggers)))
