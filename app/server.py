"""The dashboard for others, behind its door: ``diffscope app --share``."""

import sys
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from access import Door  # noqa: E402

app = st.App(HERE / "main.py", middleware=[Middleware(Door)])
