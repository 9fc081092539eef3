"""The targets by name: our own, and those that other distributions offer.

A distribution adds targets by entry points of the group ``costproof.targets``; the value names a
class with the constructors of :class:`TargetFactory`. Nothing is imported before a target is asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, Protocol, cast

from costproof.ledger.errors import BadInput
from costproof.models.deepseek_ocr.remote_code.snapshot import is_folder_target
from costproof.models.target import Target

GROUP: Final = "costproof.targets"


class TargetFactory(Protocol):
    """What a registered name stands for."""

    def default(self) -> Target:
        """The target with its published configuration."""
        ...

    def from_file(self, path: Path) -> Target:
        """The target with the configuration in a file."""
        ...

    def from_data(self, data: Mapping[str, Any]) -> Target:
        """The target with a normalised configuration, as the target itself wrote it."""
        ...


@dataclass(frozen=True, slots=True)
class Registered:
    """A name, who offers it, what it is in one line, and how to get at it."""

    name: str
    owner: str
    what: str
    load: Callable[[], TargetFactory]


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A target as plain data, to build it again in another process.

    Without a file and without data it is the published configuration.
    """

    name: str
    config_path: str | None = None
    config_data: Mapping[str, Any] | None = None

    def load(self) -> Target:
        """Build the target."""
        if self.config_data is not None:
            return factory(self.name).from_data(self.config_data)
        return load_target(self.name, None if self.config_path is None else Path(self.config_path))


def _deepseek_ocr() -> TargetFactory:
    from costproof.models.deepseek_ocr.target import DeepseekOcr

    return DeepseekOcr


BUILT_IN: Final = (
    Registered(
        "deepseek-ocr",
        "costproof",
        "DeepSeek-OCR: SAM ViT-B, CLIP-L, linear projector, DeepSeek MoE decoder (transformers' native classes)",
        _deepseek_ocr,
    ),
)


def targets(offered: Iterable[EntryPoint] | None = None) -> dict[str, Registered]:
    """All targets by name.

    Args:
        offered: entry points to look at; by default those of the installed distributions.

    Raises:
        BadInput: two owners offer the same name.
    """
    found = {r.name: r for r in BUILT_IN}
    for point in entry_points(group=GROUP) if offered is None else offered:
        owner = point.dist.name if point.dist is not None else point.value
        if point.name in found:
            raise BadInput(
                "two distributions offer the same target",
                where=point.name,
                got=f"{found[point.name].owner} and {owner}",
                fix="uninstall one of them",
            )
        found[point.name] = Registered(point.name, owner, point.value, _thunk(point, owner))
    return found


def _thunk(point: EntryPoint, owner: str) -> Callable[[], TargetFactory]:
    def load() -> TargetFactory:
        try:
            return cast(TargetFactory, point.load())
        except (ImportError, AttributeError) as error:
            raise BadInput(
                "a target cannot be loaded", where=point.name, got=f"{point.value} of {owner}: {error}"
            ) from error

    return load


def factory(name: str) -> TargetFactory:
    """What builds the target of that name.

    Raises:
        BadInput: nobody offers the name.
    """
    known = targets()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise BadInput(
            "there is no such target",
            where=name[:80],
            expected=", ".join(sorted(known)),
            fix=f"did you mean {close[0]!r}?" if close else "see: costproof targets",
        )
    return known[name].load()


def load_target(name: str, config_path: Path | None = None, *, trusted: bool = False) -> Target:
    """The target of that name, with the configuration in a file if one is given, or the snapshot in a folder.

    Args:
        trusted: whether the Python code in a snapshot's folder may run.

    Raises:
        BadInput: no such target, or the file or folder cannot be used.
    """
    if name not in targets() and is_folder_target(name):
        from costproof.models.deepseek_ocr.remote_code.target import VendorOcr

        if config_path is not None:
            raise BadInput("a snapshot brings its own configuration", where="--config", got=str(config_path))
        return VendorOcr.from_folder(Path(name), trusted=trusted)
    made = factory(name)
    return made.default() if config_path is None else made.from_file(config_path)
