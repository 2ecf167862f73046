"""Formulas as MathML, which browsers draw themselves: no script is loaded, from nowhere."""

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def inline(self, node: nodes.math) -> None:
    """A formula within a line."""
    self.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def block(self, node: nodes.math_block) -> None:
    """A formula of its own line."""
    self.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app):
    """Make the renderer known, and take it."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
