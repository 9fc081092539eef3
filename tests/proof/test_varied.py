"""Every field of every configuration is varied by the draws of a proof, or is listed with the reason why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, reduce
from math import gcd
from typing import Any, Final

import pytest

from costproof.analytic.elementwise import ACTIVATION_FLOPS
from costproof.models.proof import WithProof, not_drawn
from tests.recorded import families

FAMILIES: Final = families()
DRAWS: Final = 192
REFUSED: Final[Mapping[str, set[str]]] = {"gemma": {"gelu"}}
"""Activations that a family takes for another one."""
MLPS: Final = {"relu", "gated-gelu", "gated-silu"}
"""The kinds of MLP that T5 has in a file."""


def flat(config: Any, within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all fields of a configuration and of its parts, by path, but for the keys that nothing reads."""
    for f in fields(config):
        value = getattr(config, f.name)
        if is_dataclass(value):
            yield from flat(value, f"{within}{f.name}.")
        elif f.name != "waived":
            yield within + f.name, value


@cache
def drawn(family: str) -> dict[str, list[Any]]:
    """Return the values of every field in the draws of a family."""
    target: Any = FAMILIES[family]
    assert isinstance(target, WithProof)
    found: dict[str, list[Any]] = {}
    for piece in target.proof(DRAWS, 1).pieces:
        if piece.phase == "draws":
            config: Any = piece.target
            for path, value in flat(config.config):
                found.setdefault(path, []).append(value)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_is_varied_or_listed_with_the_reason(family: str) -> None:
    target: Any = FAMILIES[family]
    fixed = {path for path, values in drawn(family).items() if all(v == values[0] for v in values)}
    assert fixed == not_drawn(target.config).keys()
    assert set(not_drawn(target.config).values()) != {""}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_value_of_an_enumerated_field_is_drawn(family: str) -> None:
    config: Any = FAMILIES[family].config  # type: ignore[attr-defined]
    for path, values in drawn(family).items():
        name, seen = path.rpartition(".")[2], {*values} if isinstance(values[0], (str, bool)) else set()
        if len(seen) < 2:
            continue
        if name.endswith("activation"):
            assert seen == {*ACTIVATION_FLOPS} - REFUSED.get(family, set()), path
        elif name == "architecture":
            assert seen == {*type(config).architectures}, path
        elif name == "pattern":
            assert seen == {*type(config).patterns}, path
        elif name == "mlp":
            assert seen == MLPS
        else:
            assert seen == {True, False} or name == "kinds", path


@pytest.mark.parametrize("family", FAMILIES)
def test_no_size_is_always_a_multiple_of_what_formulas_round_to(family: str) -> None:
    """A formula that rounds rounds to 8 or more. Rotation needs pairs, and in two towers pairs of pairs."""
    for path, values in drawn(family).items():
        if isinstance(values[0], int) and not isinstance(values[0], bool) and len({*values}) > 1:
            assert reduce(gcd, values) in (1, 2, 4), path


def test_a_certificate_says_what_is_not_varied() -> None:
    target: Any = FAMILIES["deepseek_v3"]
    assert "window, pattern: the class has no windows" in target.proof(1, 1).not_varied
