"""Sections on a model as an amplifier: each has a title, a question, and charts that are explained and can be taken away."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import blocks
import streamlit as st
import xarray as xr
from messages import escape_markdown
from sidebar import Subject

from diffscope.figures import Figure
from diffscope.figures.escaping import short_name

IMPORTS = "from diffscope import readings\nfrom diffscope.figures import amplifier_charts as charts\n"


def heading(title: str, question: str, anchor: str) -> None:
    """Show the title of a section, and what it asks."""
    st.subheader(escape_markdown(title), anchor=anchor)
    st.caption(escape_markdown(question))


class Section(NamedTuple):
    """What the charts of a section are of.

    Attributes
    ----------
    subject : Subject
    python : str
        Python that gives ``reading`` of the subject.
    estimates : Dataset
        Those of the reading.
    """

    subject: Subject
    python: str
    estimates: xr.Dataset

    def show(
        self,
        variable: str,
        chart: Callable[..., Figure],
        *choices,
        alt: str,
        name: str = "",
        data: xr.Dataset | None = None,
        reads: str = "",
        says: str = "",
        prints: str = "reading",
    ) -> None:
        """Show what a chart says here, the chart, how to read it, and the export menu.

        Parameters
        ----------
        variable : str
            What is drawn, which says how to read it.
        chart : callable
            One of ``diffscope.figures.amplifier_charts``, called with the estimates and `choices`.
        alt : str
            What the chart shows.
        name : str
            Begins the names of files; by default that of the variable.
        data : Dataset, optional
            What is exported; by default the variable alone.
        reads, says : str
            How to read it, instead of what the variable says, and what it says here.
        prints : str
            Python of what is printed before the chart is saved.
        """
        name = name or variable
        figure = chart(self.estimates, *choices)
        data = self.estimates[[variable]] if data is None else data
        call = f"charts.{chart.__name__}({', '.join(['reading.estimates', *map(repr, choices)])}).save('{name}.pdf')"
        blocks.show_figure(
            figure,
            alt,
            key=f"amplifier-{name}",
            name=f"{short_name(self.estimates.attrs['model'])}-{name}",
            says=says,
            caption=reads or self.estimates[variable].attrs.get("reads", ""),
            data=lambda: data,
            code="\n".join([self.subject.code(), IMPORTS, self.python, f"print({prints})", call, ""]),
        )
