"""The dashboard: `streamlit run app/main.py`, or `diffscope app`."""

import sys
from functools import partial
from pathlib import Path

import streamlit as st

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:  # pages import what lies beside this file
    sys.path.insert(0, str(HERE))

from access import admitted  # noqa: E402
from prepare import activity, prepare  # noqa: E402
from url_state import moved_query, restore  # noqa: E402

st.set_page_config(page_title="diffscope", layout="wide", initial_sidebar_state="expanded")
if not admitted():
    st.stop()
st.html(
    "<style>"
    ".stMainBlockContainer{padding:4.5rem 2rem 2rem}"
    ".stSidebar .stVerticalBlock{gap:.6rem}"
    "[data-testid=stSidebarUserContent]{padding-top:.5rem}"
    "</style>"
)

with st.sidebar:
    st.html('<div style="font-size:1.25rem;font-weight:650;letter-spacing:.01em">diffscope</div>')

#: one page a question: file, title
PAGES = {"explore": "Explore", "compare": "Compare", "change": "Change", "training": "Training", "tests": "Tests"}
#: pages that other pages lead to
HIDDEN = {"amplifier": "Numbers and logits", "your_model": "Open a model"}
#: addresses that pages had, and the page that has their place
MOVED = {"intervene": "change", "hypotheses": "tests"}

pages = {
    name: st.Page(
        HERE / "app_pages" / f"{name}.py",
        title=title,
        url_path=name,
        default=name == "explore",
        visibility="visible" if name in PAGES else "hidden",
    )
    for name, title in (PAGES | HIDDEN).items()
    if (HERE / "app_pages" / f"{name}.py").is_file()
}


def go_to(name: str, moved: str) -> None:
    """Open the page that has the place of another one, with the values of its address."""
    st.switch_page(pages[name], query_params=moved_query(moved, name))


moved = [
    st.Page(partial(go_to, name, before), title=PAGES[name], url_path=before, visibility="hidden")
    for before, name in MOVED.items()
]
page = st.navigation([*pages.values(), *moved], position="top")
if page.url_path not in MOVED:
    restore(page.url_path)
with activity().page():
    page.run()
if page is pages["explore"] and "_subject" in st.session_state:
    prepare(st.session_state["_subject"])
