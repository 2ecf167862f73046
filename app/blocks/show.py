"""Charts and tables of pages, where they stand, and what a reader takes away from them.

A figure, a page, the data, the Python that gives it again, and the address of the view.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import urlencode

import pandas as pd
import streamlit as st
from messages import escape_markdown

from diffscope.figures import Figure, theme
from diffscope.storage.statistics import save_statistics

QUIET = {"displaylogo": False, "displayModeBar": False, "doubleClick": False}
PRINTED = {"PDF": ("application/pdf", ".pdf"), "SVG": ("image/svg+xml", ".svg"), "PNG": ("image/png", ".png")}
TABLES = {
    "CSV": ("text/csv", ".csv"),
    "Parquet": ("application/vnd.apache.parquet", ".parquet"),
    "NetCDF": ("application/x-netcdf", ".nc"),
}
LATER = {"on_click": "ignore"}  # a download changes nothing on the page
KNOWN = "_charts-known"  # whether the browser of this session has read what draws charts
SHOWN_LATER = "later"  # the key of all that is shown later
PATIENCE = 4.0  # seconds after which it is taken to have drawn what stands above, although it does not say so
DRAWN = """
export default function ({ setTriggerValue }) {
  const told = requestAnimationFrame(() => requestAnimationFrame(() => setTriggerValue("drawn", true)));
  return () => cancelAnimationFrame(told);
}
"""
ROW = 28  # pixels of a row of a table, below a heading of 36


@cache
def component(name: str, js: str):
    """Return the component of this name, made once."""
    return st.components.v2.component(f"diffscope_{name}", js=js)


def show_chart(figure, alt: str, key: str, **options):
    """A figure of diffscope, or the plotly drawing of one, in the colours of the page; `alt` says what it shows."""
    drawing = figure.plotly() if isinstance(figure, Figure) else figure
    if st.context.theme.type == "dark":
        drawing = theme.on_dark(drawing)
    return st.plotly_chart(drawing, theme=None, config=QUIET, key=key, alt=alt, **options)


def show_figure(
    figure: Figure,
    alt: str,
    *,
    key: str,
    name: str,
    says: str = "",
    caption: str = "",
    data: Callable | None = None,
    code: str = "",
    label: str = "Export",
    **options,
) -> None:
    """Show what a figure says, the figure, how to read it, and its export menu.

    `key` is of the chart, `name` begins the names of exported files; `data` gives other data than the figure's own, and `options`
    are those of ``show_chart``.
    """
    if says:
        st.markdown(f"**{escape_markdown(says)}**")
    show_chart(figure, alt, key=key, **options)
    if caption:
        st.caption(escape_markdown(caption))
    export_menu(name, figure=lambda: figure, data=data or (lambda: figure.data), code=code, label=label)


def saved(figure: Figure, subject: str, name: str) -> str:
    """Return Python that saves a figure as PDF; `subject` is the Python of what it is of."""
    return f'{figure.python(subject)}.save("{name}.pdf")\n'


def export_menu(
    name: str,
    *,
    figure: Callable[[], Figure] | None = None,
    page: Callable[[], str] | None = None,
    data: Callable | None = None,
    text: Callable[[], str] | None = None,
    code: str = "",
    label: str = "Export",
):
    """A menu of downloads, each made when its button is pressed.

    `figure` gives the figure to print, `page` HTML that needs nothing else (by default the figure's own), `data` the Dataset,
    `text` Markdown, and `code` is Python that gives the same again. `name` begins the names of the files and the keys of the
    buttons.
    """
    with st.popover(label, help="Figure, data, Python and address of this view"):
        if figure is not None:
            st.caption("Figure")
            with st.container(horizontal=True):
                for word, (mime, suffix) in PRINTED.items():
                    _button(name, word, suffix, mime, lambda suffix=suffix: figure().to_bytes(suffix))
                html = page or (lambda: figure().to_bytes(".html"))
                _button(name, "HTML", ".html", "text/html", lambda: _as_bytes(html()))
        if data is not None:
            st.caption("Data")
            with st.container(horizontal=True):
                for word, (mime, suffix) in TABLES.items():
                    _button(name, word, suffix, mime, lambda suffix=suffix: table(data(), suffix))
        if text is not None:
            st.caption("Text")
            _button(name, "Markdown", ".md", "text/markdown", lambda: text().encode())
        if code:
            st.caption("Python")
            st.code(code, language="python")
        st.caption("Address of this page")
        st.code(address(), language=None, wrap_lines=True)


def _button(name: str, word: str, suffix: str, mime: str, content: Callable[[], bytes]):
    st.download_button(word, content, f"{name}{suffix}", mime, key=f"{name}-{word}", **LATER)


def _as_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def table(dataset, suffix: str) -> bytes:
    """A Dataset as the bytes of a file: .csv, .parquet or .nc."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"data{suffix}"
        save_statistics(dataset, path)
        return path.read_bytes()


def address() -> str:
    """Where the page brings this view back."""
    query = urlencode([(key, value) for key in st.query_params for value in st.query_params.get_all(key)])
    return f"{st.context.url or ''}?{query}"


def show_table(rows, seen: int | None = None, **options):
    """Show rows as a table that is as high as all of them, or as those that are `seen` without scrolling."""
    count = len(rows) if seen is None else min(len(rows), seen)
    data = pd.DataFrame(rows) if isinstance(rows, list) else rows
    return st.dataframe(data, **{"hide_index": True, "row_height": ROW, "height": 36 + ROW * count} | options)


@contextmanager
def columns(*names: str, least: int | Sequence[int] = 320) -> Iterator[list]:
    """Put containers side by side, each at least `least` pixels wide; a name is a key of the page, given once.

    With a width for each, what is left over is divided in their proportion.
    """
    widths = [least] * len(names) if isinstance(least, int) else least
    rules = [
        f"div:has(> .st-key-part-{name}){{flex:{wide} 1 {wide}px;min-width:min({wide}px,100%)}}"
        for name, wide in zip(names, widths)
    ]
    st.html(f"<style>{''.join(rules)}</style>")
    with st.container(horizontal=True, gap="medium"):
        yield [st.container(key=f"part-{name}") for name in names]


@contextmanager
def folded(label: str, key: str) -> Iterator[bool]:
    """Put what is shown into a row that opens; yield whether it is open, since what is closed is not drawn."""
    row = st.expander(label, key=key, on_change="rerun")
    with row:
        yield bool(row.open)


def _know() -> None:
    """Show all of them: what two tell at once would be taken as told by one of them."""
    st.session_state[KNOWN] = True
    st.rerun(SHOWN_LATER)


@st.fragment(key=SHOWN_LATER)
def show_later(show: Callable[[], object], key: str) -> None:
    """Show charts or tables when what stands above is drawn, or after a few seconds.

    A browser takes most of a second to read what draws them, and draws nothing meanwhile. In a session that has read it they
    are shown at once.
    """
    if st.session_state.get(KNOWN):
        show()
        return
    component("drawn", DRAWN)(key=key, on_drawn_change=_know)
    asked = time.monotonic()

    @st.fragment(run_every=PATIENCE)
    def wait() -> None:
        if time.monotonic() - asked > PATIENCE / 2:  # not its first run, which is this one
            st.session_state[KNOWN] = True
            st.rerun()

    wait()
