"""The live view of the first page: what Explore exports, of a bundled model, as one page that needs nothing else."""

from pathlib import Path

from gallery import DRAWN, digest, package

FOLDER = DRAWN / "live"  # all of it is copied to where the first page is
PAGE = "live_view.html"
LAYER, HEAD = 1, 1  # a head that finds the answer


def drawn() -> Path:
    """The page, made again if the package has changed."""
    made_of, page = DRAWN / "live.made-of", FOLDER / PAGE
    code = digest([Path(__file__), *package()])
    if not page.exists() or not made_of.exists() or made_of.read_text() != code:
        FOLDER.mkdir(parents=True, exist_ok=True)
        page.write_text(exported(), encoding="utf-8")
        made_of.write_text(code)
    return page


def exported() -> str:
    """The four maps of every head on an example, each with its sentence about the last token."""
    import diffscope
    from diffscope import readings
    from diffscope.views.attention import page

    example = diffscope.tasks.examples()[0]
    cap = diffscope.load("mini-diff").capture(example.text, spans=example.spans)
    return page(
        cap, LAYER, HEAD, sentences=lambda layer, head: readings.of_head(cap, layer, head).parts, query=len(cap.tokens) - 1
    )


def prepare(app, config) -> None:
    """Make the page, and have it copied."""
    drawn()
    config.html_extra_path = [*config.html_extra_path, str(FOLDER)]


def setup(app):
    """Make it before anything is written."""
    app.connect("config-inited", prepare)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
