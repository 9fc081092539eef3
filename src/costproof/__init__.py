"""Count the work of a neural network three ways and account for every difference.

    import costproof

    report = costproof.report("deepseek-ocr", preset="gundam", grid="3x2")
    report                      # the summary table
    report.verdict              # "exact", "explained", "unexplained" or "incomplete"
    report.findings()           # a DataFrame
    costproof.explain("deepseek-ocr", "sam", module="*attn*")

Importing this package imports nothing else: the API is imported when one of its names is used.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to import as Python takes to start, and a command answers signals after that
    from typing import Any

    from costproof.api import *  # noqa: F403
    from costproof.api import __all__ as __all__
    from costproof.api import compare as compare
    from costproof.api import graph as graph


def __getattr__(name: str) -> Any:
    import costproof.api as api

    # That import has made rooms attributes of this package.
    return globals()[name] if name in globals() else getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))


def _verb(name: str) -> property:
    """Return the verb that has the name of a room, also when the room was imported."""
    return property(lambda _: __getattr__(name), lambda _, room: None)


class _Package(type(sys)):  # type: ignore[misc]
    compare, graph = _verb("compare"), _verb("graph")


sys.modules[__name__].__class__ = _Package
