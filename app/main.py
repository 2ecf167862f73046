"""The dashboard: `streamlit run app/main.py`, or `diffscope app`."""

import sys
from pathlib import Path

import streamlit as st

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:  # pages import what lies beside this file
    sys.path.insert(0, str(HERE))

from access import admitted  # noqa: E402
from prepare import activity, prepare  # noqa: E402
from url_state import OPENED, PANEL, restore  # noqa: E402

st.set_page_config(page_title="diffscope", layout="wide")
if not admitted():
    st.stop()
st.html(
    "<style>"
    ".stMainBlockContainer{padding:4.5rem 2rem 2rem}"
    ".stSidebar .stVerticalBlock{gap:.6rem}"
    "[data-testid=stSidebarUserContent]{padding-top:.5rem}"
    ".stSidebar textarea{max-height:24rem;overflow-y:auto}"
    "</style>"
)

with st.sidebar:
    st.html('<div style="font-size:1.25rem;font-weight:650;letter-spacing:.01em">diffscope</div>')

#: the title of each page, a question each, by the name of its file
PAGES = {"explore": "Explore", "compare": "Compare", "change": "Change", "training": "Training", "tests": "Tests"}
pages = {
    name: st.Page(HERE / "app_pages" / f"{name}.py", title=title, url_path=name, default=name == "explore")
    for name, title in PAGES.items()
}
page = st.navigation(list(pages.values()), position="top")
restore(page.url_path)
if st.query_params.get(PANEL) == OPENED:
    from model_panel import show_panel  # which loads the tests

    show_panel()
with activity().page():
    page.run()
if page is pages["explore"] and "_subject" in st.session_state:
    prepare(st.session_state["_subject"])
