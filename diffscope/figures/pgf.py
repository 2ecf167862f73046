"""A figure as PGF, which LaTeX sets in the paper's own font."""

from __future__ import annotations

from pathlib import Path

from diffscope.render import as_latex

PGF_HEADER = r"""%% {name}: \usepackage{{pgf}} in the preamble, \input{{{name}}} in the text
%% Its images, {stem}-img0.png and so on, lie beside it. Characters beyond Latin and Greek need LuaLaTeX or XeLaTeX.
"""


def write_pgf(drawing, path: Path, dpi: int) -> None:
    """Write a matplotlib figure that is laid out to `path`, and its images beside it, whose names begin like its own."""
    from matplotlib.backends.backend_mixed import MixedModeRenderer

    drawing.set_dpi(dpi)  # of vectors and images alike, so that both lie on one grid
    width, height = drawing.get_size_inches()
    with open(path, "w", encoding="utf-8") as file:
        file.write(PGF_HEADER.format(name=path.name, stem=path.stem))
        file.write("\\begingroup\n\\makeatletter\n\\begin{pgfpicture}%\n")
        file.write(f"\\pgfpathrectangle{{\\pgfpointorigin}}{{\\pgfqpoint{{{width:f}in}}{{{height:f}in}}}}%\n")
        file.write("\\pgfusepath{use as bounding box, clip}%\n")
        drawing.draw(MixedModeRenderer(drawing, width, height, dpi, _pgf_renderer(drawing, file, path)))
        file.write("\\end{pgfpicture}%\n\\makeatother\n\\endgroup\n")


def _pgf_renderer(drawing, file, path: Path):
    """Return Matplotlib's renderer, without the LaTeX that it would run to measure texts and to learn how images are included."""
    from matplotlib.backends.backend_pgf import RendererPgf
    from PIL import Image

    measure = drawing.canvas.get_renderer().get_text_width_height_descent

    class Renderer(RendererPgf):
        def get_text_width_height_descent(self, s, prop, ismath):
            return measure(s, prop, ismath)

        def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
            super().draw_text(gc, x, y, as_latex(s), prop, angle, ismath, mtext)

        def draw_image(self, gc, x, y, im, transform=None):
            height, width = im.shape[:2]
            if not height or not width:
                return
            name = f"{path.stem}-img{self.image_counter}.png"
            self.image_counter += 1
            Image.fromarray(im[::-1]).save(path.with_name(name))
            inch = 1 / self.dpi
            at = f"x={x * inch:f}in,y={y * inch:f}in,left,bottom"
            size = f"width={width * inch:f}in,height={height * inch:f}in"
            file.write("\\begin{pgfscope}%\n")
            self._print_pgf_clip(gc)
            file.write(f"\\pgftext[{at}]{{\\includegraphics[{size}]{{{name}}}}}%\n\\end{{pgfscope}}%\n")

    return Renderer(drawing, file)
