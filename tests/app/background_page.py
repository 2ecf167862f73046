"""A page with a job that counts in a file, whose folder and name are in the address; and another page."""

import time
from pathlib import Path

import no_models  # noqa: F401
import streamlit as st
from background import jobs, show_progress


def count(job, path):
    for number in range(10_000):
        job.report(number, 10_000, f"counted {number}")
        path.write_text(str(number))
        time.sleep(0.05)


def counting():
    if "path" not in st.session_state:
        st.session_state["path"] = Path(st.query_params["folder"]) / st.query_params["name"]
    path = st.session_state["path"]
    job = jobs().get("count")
    if job is not None and job.running:
        show_progress(job, "count")
    elif st.button("Count"):
        jobs().start("count", lambda job: count(job, path))
        st.rerun()


def elsewhere():
    st.text("Elsewhere")


st.navigation([st.Page(counting, default=True), st.Page(elsewhere)]).run()
