"""What a reader takes away from a view: a figure, a page, the data, the Python that gives it again, and its address."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import streamlit as st
from messages import escape_markdown

from blocks.show import show_chart
from diffscope.figures import Figure
from diffscope.storage.statistics import save_statistics

PRINTED = {"PDF": ("application/pdf", ".pdf"), "SVG": ("image/svg+xml", ".svg"), "PNG": ("image/png", ".png")}
TABLES = {
    "CSV": ("text/csv", ".csv"),
    "Parquet": ("application/vnd.apache.parquet", ".parquet"),
    "NetCDF": ("application/x-netcdf", ".nc"),
}
LATER = {"on_click": "ignore"}  # a download changes nothing on the page


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
