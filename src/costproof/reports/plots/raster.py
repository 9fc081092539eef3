"""PNG of the SVG that this program writes itself: resvg draws it, in matplotlib's fonts."""

from __future__ import annotations

from pathlib import Path

from costproof.ledger.environment import require


def png(svg: str) -> bytes:
    """The picture as PNG, two dots a pixel; the same bytes wherever the same versions are installed.

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
