"""Count the work of a neural network three ways and account for every difference.

    import costproof

    report = costproof.report("deepseek-ocr", preset="gundam", grid="3x2")
    report                      # the summary table
    report.verdict              # "exact", "explained", "unexplained" or "incomplete"
    report.findings()           # a DataFrame
    costproof.explain("deepseek-ocr", "sam", module="*attn*")

Importing this package is lazy: :mod:`costproof.api` is imported when one of its names is first used.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to import as Python takes to start, and a command answers signals after that
    from typing import Any

    from costproof.api import *  # noqa: F403
    from costproof.api import compare as compare


def __getattr__(name: str) -> Any:
    import costproof.api as api

    # The import above makes subpackages attributes of this package.
    return globals()[name] if name in globals() else getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))


class _Package(type(sys)):  # type: ignore[misc]
    """Module type whose ``compare`` is the API function, also after the subpackage of the same name is imported."""

    compare = property(lambda _: __getattr__("compare"), lambda _, subpackage: None)


sys.modules[__name__].__class__ = _Package
