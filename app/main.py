"""The dashboard: `streamlit run app/main.py`, or `diffscope app`."""

import sys
from pathlib import Path

import streamlit as st

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:  # pages import the blocks that lie beside this file
    sys.path.insert(0, str(HERE))

st.set_page_config(page_title="diffscope", layout="wide", initial_sidebar_state="expanded")
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
PAGES = [("explore", "Explore"), ("hypotheses", "Hypotheses")]

st.navigation(
    [
        st.Page(HERE / "app_pages" / f"{name}.py", title=title, url_path=name, default=name == PAGES[0][0])
        for name, title in PAGES
    ],
    position="top",
).run()
