"""Draw figures with matplotlib in costproof's style and with reproducible bytes, and rasterise SVG."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from costproof.ledger.environment import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: Final = ("svg", "png")
COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bb7744", "#777777")
"""Colors of stages, distinguishable with any color vision (P. Tol's bright scheme, two added)."""
_SCALE: Final = 150
"""Dots per inch of a PNG."""
_LOOKS: Final = {
    "svg.hashsalt": "costproof",
    # Text stays text: it can be searched, and needs no font of ours.
    "svg.fonttype": "none",
    # Names may hold a dollar sign.
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "legend.fontsize": 8,
    "legend.framealpha": 0.9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
}


@contextmanager
def style() -> Iterator[None]:
    """Apply costproof's matplotlib style inside the context, overriding every ``matplotlibrc``, also a local one.

    Raises:
        Incomplete: matplotlib is not installed.
    """
    require("plot", "drawing pictures", "matplotlib")
    import matplotlib

    usual = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
    with matplotlib.rc_context({**usual, **_LOOKS}):
        yield


def new_figure(width: float, height: float, title: str) -> Figure:
    """Return an empty figure; sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def render_figure(figure: Figure, kind: str) -> bytes:
    """Return the bytes of a figure as SVG or PNG."""
    out = BytesIO()
    figure.savefig(out, format=kind, dpi=_SCALE, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return out.getvalue()


def colour(number: int) -> str:
    """Return the chart colour of the stage with this index."""
    return COLOURS[number % len(COLOURS)]


def ink(background: str) -> str:
    """Return black or white, whichever contrasts more with a background colour."""
    red, green, blue = (int(background[i : i + 2], 16) for i in (1, 3, 5))
    return "#111111" if 299 * red + 587 * green + 114 * blue > 130_000 else "#ffffff"


def png(svg: str) -> bytes:
    """Rasterize an SVG at two dots per pixel; byte-identical for equal versions of resvg and matplotlib.

    Raises:
        Incomplete: resvg or matplotlib is not installed.
        ValueError: this is not SVG.
    """
    require("plot", "drawing pictures", "resvg_py", "matplotlib")
    import resvg_py
    from matplotlib import get_data_path

    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=svg,
            zoom=2,
            skip_system_fonts=True,
            font_dirs=[str(Path(get_data_path()) / "fonts" / "ttf")],
            font_family="DejaVu Sans",
            sans_serif_family="DejaVu Sans",
            monospace_family="DejaVu Sans Mono",
        )
    )
