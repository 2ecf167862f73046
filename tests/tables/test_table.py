"""A table is the same in every form; LaTeX sets it whatever its cells hold."""

import re
import shutil
import subprocess
from dataclasses import replace

import pandas as pd
import pytest
from pyarrow import parquet

from diffscope import DiffscopeError
from diffscope.hypotheses import TESTS
from diffscope.render import as_latex
from diffscope.stats import STATISTICS
from diffscope.tables import Table
from diffscope.tables.table import Column

HOSTILE = ("50 % & $x_1$ # {a}~b^c \\d", 'λ₁ − 0.1·10⁻⁵ ± √2 ≥ |x| "q"', "[0, 1] <b>*a*</b>", "a\nb")
CELLS = (("[first", "−0.52 [−0.60, –0.44]", "1"), *((cell, "–", "2.5 ± 0.1") for cell in HOSTILE))


@pytest.fixture
def table():
    return Table(
        "x", ("name", "value λ_init", "n"), CELLS, "A & B: 95 %", pd.DataFrame({"value": [1.5], "of": ["a"]}), ("p < 1",)
    )


def test_cells_stay_cells_in_latex(table):
    lines = [line.strip() for line in table.to_latex().splitlines()]
    rows = [line for line in lines if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [2] * (1 + len(CELLS))
    assert lines.index(r"\toprule") < lines.index(r"\midrule") < lines.index(r"\bottomrule")
    assert r"value $\lambda$\_init" in rows[0] and r"$-$0.52 [$-$0.60" in rows[1]
    assert not any(row.startswith("[") for row in rows), "which would be an option of the line break before"
    assert "{tabular}{lrr}" in table.to_latex(), "numbers to the right, dashes among them"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdfLaTeX")
def test_latex_sets_it(table, tmp_path):
    document = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}\n{table.to_latex()}\\end{{document}}\n"
    (tmp_path / "t.tex").write_text(document, encoding="utf-8")
    done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0 and (tmp_path / "t.pdf").is_file(), done.stdout.decode(errors="replace")[-2000:]


def test_no_word_of_statistics_and_tests_is_beyond_latex():
    words = [text for one in STATISTICS.values() for text in (one.formula, one.units, one.name)]
    words += [quantity.label for test in TESTS.values() for quantity in test.quantities.values()]
    beyond = {sign for text in words for sign in as_latex(text) if ord(sign) > 255}
    assert not beyond


def test_cells_stay_cells_in_markdown(table):
    lines = table.to_markdown().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [4] * (2 + len(CELLS))
    assert "<b>" not in "".join(rows).replace(r"\<b\>", "") and lines[0] == "A & B: 95 %" and lines[-1] == r"p \< 1"
    assert "<b>" not in table._repr_html_()


def test_captions_and_notes_are_text_in_markdown(table):
    hostile = "<img src=x onerror=alert(1)>"
    lines = replace(table, caption=f"of {hostile}", notes=(hostile,)).to_markdown().splitlines()
    assert lines[0] == rf"of \{hostile[:-1]}\>" and lines[-1] == rf"\{hostile[:-1]}\>"


def test_it_is_kept_as_the_name_says(table, tmp_path):
    for suffix in (".tex", ".md", ".parquet", ".csv"):
        assert table.save(tmp_path / f"t{suffix}") == tmp_path / f"t{suffix}"
    assert (tmp_path / "t.tex").read_text(encoding="utf-8") == table.to_latex()
    assert (tmp_path / "t.md").read_text(encoding="utf-8") == table.to_markdown()
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), table.data)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv"), table.data)
    assert b"95 %" in parquet.read_metadata(tmp_path / "t.parquet").metadata[b"diffscope"]
    with pytest.raises(DiffscopeError, match=r"'t\.docx'; end the name in \.tex"):
        table.save(tmp_path / "t.docx")


def test_later_rows_of_a_group_leave_its_columns_empty():
    columns = [Column("of", lambda record: record["of"], once=True), Column("n", lambda record: str(record["n"]))]
    records = [{"of": "a", "n": 1}, {"of": "a", "n": 2}, {"of": "b", "n": 2}]
    table = Table.of("groups", records, columns, "Caption.", ("", "Note."), group="of")
    assert table.header == ("of", "n") and table.rows == (("a", "1"), ("", "2"), ("b", "2"))
    assert table.data.to_dict("records") == records and table.notes == ("Note.",)
    assert Table.of("rows", records, columns, "Caption.").rows[1] == ("a", "2")
