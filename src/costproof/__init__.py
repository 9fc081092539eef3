"""Count the work of a neural network three ways and account for every difference.

    import costproof

    report = costproof.report("deepseek-ocr", preset="gundam", grid="3x2")
    report                      # the summary table
    report.verdict              # "exact", "explained", "unexplained" or "incomplete"
    report.findings()           # a DataFrame
    costproof.explain("deepseek-ocr", "sam", module="*attn*")

Importing this package imports neither torch nor transformers nor sympy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# These two rooms have the name of a verb. They are loaded first, so that the verb keeps the name.
import costproof.compare
import costproof.graph  # noqa: F401
from costproof import api
from costproof.api import compare as compare
from costproof.api import graph as graph

if TYPE_CHECKING:
    from costproof.api import *  # noqa: F403

__all__ = api.__all__


def __getattr__(name: str) -> Any:
    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
