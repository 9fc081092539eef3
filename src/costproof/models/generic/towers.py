"""Find the towers and projectors of a multimodal model: the modules that a text-only run does not call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import attribute
from costproof.models.decoding.decoder import Locate
from costproof.snapshots.copies import short_run

if TYPE_CHECKING:
    from torch import nn

IDS: Final = "input_ids"


@dataclass(frozen=True, slots=True)
class Towers:
    """Towers and projectors of a model, each a stage of its own, in execution order."""

    stages: Mapping[str, str]
    """Stage of each tower or projector, by its path or the path of a list of several."""

    def stage_of(self, path: str) -> str | None:
        """Return the stage of a module inside a tower, or ``None`` for any other module."""
        return next((s for p, s in self.stages.items() if path == p or path.startswith(f"{p}.")), None)

    def around(self, locate: Locate) -> Locate:
        """Return a locator that maps modules of towers to their stages, and other modules as ``locate`` does."""

        def located(path: str, call: int) -> tuple[str, str]:
            stage, invocation = locate(path, call)
            return self.stage_of(path) or stage, invocation

        return located

    @property
    def names(self) -> tuple[str, ...]:
        """Return the stages of the towers."""
        return tuple(dict.fromkeys(self.stages.values()))


NONE: Final = Towers({})


def towers(model: nn.Module, inputs: Mapping[str, Any]) -> Towers:
    """Return the towers of a model that takes text and other inputs, found by short runs.

    If the model does not run on only text, they are the parts of the model that run independently of each other.
    """
    beside = [v for n, v in inputs.items() if n != IDS and attribute(v, "is_floating_point", bool)()]
    if IDS not in inputs or not beside:
        return NONE
    with _reached(model) as full:
        short_run(model, inputs)
    with _reached(model) as text:
        done = short_run(model, {IDS: inputs[IDS]})
    decoder = decoder_path(model)
    if done is None:
        among = {path for path, _ in _parts(model)}
        parts = [path for path in full if path in among]
        return _named(parts) if len(parts) > 1 else NONE
    if not decoder:
        return NONE
    lone = [p for p in full if p not in text and p != decoder and not p.startswith(f"{decoder}.")]
    return _named(_outermost(lone, full))


def _parts(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the children of a model that have parameters, descending while there is only one."""
    found = [(n, m) for n, m in model.named_children() if any(True for _ in m.parameters())]
    return [(f"{found[0][0]}.{n}", m) for n, m in _parts(found[0][1])] if len(found) == 1 else found


def _outermost(paths: Iterable[str], called: Iterable[str]) -> dict[str, None]:
    """Return the paths that no other path contains; the members of a list that never runs are replaced by the list."""
    known, lone = set(called), dict.fromkeys(paths)
    found: dict[str, None] = {}
    for path in lone:
        above, _, _ = path.rpartition(".")
        if above in lone:
            continue
        found[path if not above or above in known else above] = None
    return {p: None for p in found if not any(p.startswith(f"{q}.") for q in found)}


def _named(paths: Iterable[str]) -> Towers:
    """Return a stage name for each path: its last component, or the whole path if two are equal."""
    ends = [p.rpartition(".")[2] for p in paths]
    return Towers({p: end if ends.count(end) == 1 else p for p, end in zip(paths, ends, strict=True)})


@contextmanager
def _reached(model: nn.Module) -> Iterator[dict[str, None]]:
    """Record, in order, the paths of the modules that are called while the block runs."""
    found: dict[str, None] = {}

    def noting(path: str) -> Any:
        return lambda module, args: found.setdefault(path)

    hooks = [module.register_forward_pre_hook(noting(path)) for path, module in model.named_modules()]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def decoder_path(model: nn.Module) -> str:
    """Return the path of the decoder stack, if the model states one, else the root."""
    ask = attribute(model, "get_decoder", None)
    decoder = ask() if callable(ask) else None
    return next((path for path, module in model.named_modules() if module is decoder), "")
