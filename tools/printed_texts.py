"""The texts of a printed figure, and which of them lie outside it or on each other."""

import numpy as np

from diffscope.figures import theme

SLACK = 0.5  # points that a text may be outside, or over another along its line
OVER = 1.5  # points that the boxes of two lines may overlap from line to line: they are higher than their letters


def texts(drawing) -> list[tuple[str, np.ndarray]]:
    """Every text that is drawn, not ticks beyond the ends of an axis, with its box (left, bottom, right, top) in points."""
    return [(words, box) for words, box, _ in _drawn(drawing)]


def _drawn(drawing) -> list[tuple[str, np.ndarray, bool]]:
    """As of :func:`texts`, and whether a text is turned upright."""
    from matplotlib.backends.backend_agg import RendererAgg

    class Recording(RendererAgg):
        seen: dict
        lines: list

        def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
            if mtext is not None:
                self.seen[id(mtext)] = mtext
                return
            width, height, _ = self.get_text_width_height_descent(s, prop, ismath)  # a line of several, from its lower left
            across, up = (height, width) if angle == 90 else (width, height)
            left = x - across if angle == 90 else x
            self.lines.append((s, (left, self.height - y, left + across, self.height - y + up), angle == 90))

    renderer = Recording(*drawing.bbox.size, drawing.dpi)
    renderer.seen, renderer.lines = {}, []
    with theme.styled():  # as it is when the figure is saved
        drawing.draw(renderer)
    alone = [(text.get_text(), _box(text, renderer), text.get_rotation() == 90) for text in renderer.seen.values()]
    return [(words, np.array(box) * 72 / drawing.dpi, upright) for words, box, upright in alone + renderer.lines]


def _box(text, renderer):
    """The box of a text; of a slanted one that of its end, since what is beside a slanted text may be in its box."""
    left, low, right, high = text.get_window_extent(renderer).extents
    return (left, low, right, high) if text.get_rotation() % 90 == 0 else (right - 4, high - 4, right, high)


def faults(drawing) -> list[str]:
    """What is wrong with the texts of a drawing, in words."""
    width, height = drawing.get_size_inches() * 72
    seen = _drawn(drawing)
    told = [] if seen else ["there is no text"]
    told += [f"{text!r} is mathematics" for text, *_ in seen if "mathdefault" in text]
    told += [
        f"{text!r} is outside"
        for text, (left, low, right, high), _ in seen
        if left < -SLACK or low < -SLACK or right > width + SLACK or high > height + SLACK
    ]
    return told + [
        f"{one!r} is on {other!r}"
        for number, (one, a, upright) in enumerate(seen)
        for other, b, also_upright in seen[number + 1 :]
        if _on_each_other(a, b, upright and also_upright)
    ]


def _on_each_other(a: np.ndarray, b: np.ndarray, upright: bool) -> bool:
    """Whether two texts overlap by more than the room above and below their letters; `upright`: both are turned."""
    across = min(a[2], b[2]) - max(a[0], b[0])
    up = min(a[3], b[3]) - max(a[1], b[1])
    return up > SLACK and across > OVER if upright else across > SLACK and up > OVER
