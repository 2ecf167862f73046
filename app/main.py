"""The dashboard: `streamlit run app/main.py`, or `diffscope app`."""

import sys
from pathlib import Path

import streamlit as st

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:  # pages import what lies beside this file
    sys.path.insert(0, str(HERE))

from access import admitted  # noqa: E402
from tour import offer_tour  # noqa: E402
from url_state import restore  # noqa: E402

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
PAGES = {
    "explore": "Explore",
    "compare": "Compare",
    "change": "Change",
    "amplifier": "Amplifier",
    "training": "Training",
    "tests": "Tests",
    "your_model": "Your model",
}
THERE = [name for name in PAGES if (HERE / "app_pages" / f"{name}.py").is_file()]

page = st.navigation(
    [st.Page(HERE / "app_pages" / f"{name}.py", title=PAGES[name], url_path=name, default=name == "explore") for name in THERE],
    position="top",
)
restore(page.url_path)
offer_tour()
page.run()
