"""Join scripts of this folder to an ES module, for a notebook, a page of its own, or Streamlit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
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


@dataclass(frozen=True)
class Component:
    """Scripts of this folder as an ES module that exports ``mount(element, data, emit)``.

    ``mount`` returns an object with ``update(data)`` and ``leave()``, and calls ``emit(name, value)`` for each event.

    Parameters
    ----------
    scripts : tuple of str
        Names of files, in the order in which they are joined. ``canvases.js`` comes before them all.
    triggers : tuple of str
        Names of events that leave no state in Streamlit.
    """

    scripts: tuple[str, ...]
    triggers: tuple[str, ...]

    @cached_property
    def module(self) -> str:
        """The ES module, for a notebook."""
        folder = Path(__file__).parent
        return "\n".join((folder / name).read_text(encoding="utf-8") for name in ("canvases.js", *self.scripts))

    @property
    def inline(self) -> str:
        """The module without its export, for a script element of a page."""
        return self.module.replace("export function", "function")

    @cached_property
    def streamlit(self) -> str:
        """The module as one of ``st.components.v2``, whose events other than triggers are its state."""
        return self.module + STREAMLIT.replace("TRIGGERS", json.dumps(self.triggers))
