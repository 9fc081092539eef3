"""What is found out about the module of a maker, once in a process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, Final

from costproof.ledger.attributes import attribute, has_attribute
from costproof.ledger.errors import Incomplete
from costproof.ledger.offline import offline
from costproof.ledger.workload import AttentionKind, Dtype
from costproof.models.decoding.decoder import text_config
from costproof.models.generic.beyond import beyond
from costproof.models.generic.copies import runs_on_meta, short_run
from costproof.models.generic.described import fingerprint
from costproof.models.generic.encoder_decoder import FirstRun, first_run, of_encoder
from costproof.models.generic.held_cache import HeldCache
from costproof.models.generic.inputs import KINDS, example_inputs, input_choices
from costproof.models.generic.made import Given, Made, Maker
from costproof.models.generic.makers import PLACEHOLDERS, Case
from costproof.models.generic.own_cache import OwnCache, own_cache
from costproof.models.generic.stages import longest
from costproof.models.generic.towers import NONE, Towers, towers

USUAL: Final = 512
"""Tokens of a prompt, as far as a model has positions."""
TARGET_LENGTH: Final = 29
"""Tokens that a decoder gets beside an encoder's input."""


def made_of(maker: Maker, dtype: Dtype | None, attention: AttentionKind | None) -> Made:
    """The module of a maker, made once in a process for each choice; one that is at hand is not kept from its end."""
    with offline():
        return maker.make(dtype, attention) if isinstance(maker, Given) else _kept(maker, dtype, attention)


@lru_cache(maxsize=4)
def _kept(maker: Maker, dtype: Dtype | None, attention: AttentionKind | None) -> Made:
    return maker.make(dtype, attention)


def fingerprint_of(maker: Maker) -> str:
    """Return the hash of that module, with the numbers of the maker's configuration."""
    return _of(maker) if isinstance(maker, Given) else _fingerprint(maker)


@lru_cache(maxsize=4)
def _fingerprint(maker: Maker) -> str:
    return _of(maker)


def _of(maker: Maker) -> str:
    return fingerprint(made_of(maker, None, None).module, maker.numbers)


@lru_cache(maxsize=4)
def _cache_or_why(
    maker: Maker, dtype: Dtype | None, attention: AttentionKind | None
) -> OwnCache | HeldCache | str | None:
    return own_cache(made_of(maker, dtype, attention).module)


def cache_of(maker: Maker, dtype: Dtype | None, attention: AttentionKind | None) -> OwnCache | HeldCache | None:
    """The cache of that module."""
    found = _cache_or_why(maker, dtype, attention)
    return None if isinstance(found, str) else found


def why_one_stage(maker: Maker, dtype: Dtype | None, attention: AttentionKind | None) -> tuple[str, ...]:
    """Why a module that says it uses a cache has no steps with it, as a note."""
    found = _cache_or_why(maker, dtype, attention)
    return (f"prefill and decode are one stage: {found}",) if isinstance(found, str) else ()


@lru_cache(maxsize=4)
def beyond_of(maker: Maker, dtype: Dtype | None, attention: AttentionKind | None) -> tuple[str, ...]:
    """What that module does beyond its configuration, as notes."""
    module = made_of(maker, dtype, attention).module
    config = attribute(module, "config", None)
    text = text_config(module) if has_attribute(config, "get_text_config") else config
    return beyond(module, text, cache_of(maker, dtype, attention))


@lru_cache(maxsize=8)
def first_run_of(
    maker: Maker, dtype: Dtype | None, attention: AttentionKind | None, batch: int, length: int
) -> FirstRun | None:
    """What that module hands from its encoder to its decoder."""
    made = made_of(maker, dtype, attention)
    if not attribute(attribute(made.module, "config", None), "is_encoder_decoder", False):
        return None
    choice = choice_of(maker, dtype, attention)
    case = choice.of(Case(made.module, batch, length, TARGET_LENGTH))
    return first_run(made.module, of_encoder(example_inputs(case, None, choice.names)).args)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which inputs a module gets."""

    names: tuple[str, ...] | None = None
    """Of its arguments; what forward is usually given if ``None``."""
    turned: bool = False
    """As of :class:`Case`."""
    placed: bool = False
    """Whether the model must see in the text where images or sounds are."""

    def of(self, case: Case, filled: int | None = None) -> Case:
        """What the inputs of this choice are made for; all positions of a text are filled unless it says how many."""
        most = case.length if filled is None else filled
        return replace(case, turned=self.turned, filled=most if self.placed else None)


@lru_cache(maxsize=4)
def choice_of(maker: Maker, dtype: Dtype | None, attention: AttentionKind | None) -> Choice:
    """The inputs of that module: the first choice with which it runs on meta, or with ones; else that of most.

    One with more images and sounds that runs with ones alone comes before one with fewer that runs on meta.
    """
    made = made_of(maker, dtype, attention)
    most = longest(made.module)
    case = Case(made.module, 2, USUAL if most is None else min(USUAL, most), TARGET_LENGTH)
    tried: list[tuple[Choice, dict[str, Any]]] = []
    *choices, least = input_choices(case)
    # Inputs in the other layout, and then a text that says where images and sounds are, come before fewer inputs.
    found = [
        Choice(names, turned) for turned, names in (*product((False, True), choices), (False, least), (True, least))
    ]
    found += [Choice(names, placed=True) for names in choices if case.number(*PLACEHOLDERS, default=0)]
    for choice in found:
        with suppress(Incomplete):
            args = example_inputs(choice.of(case), None, choice.names).args
            if not any(_shapes(args) == _shapes(other) for _, other in tried):
                tried.append((choice, dict(args)))
    groups: dict[tuple[int, bool], list[tuple[Choice, dict[str, Any]]]] = {}
    for choice, args in tried if len(tried) > 1 else ():
        groups.setdefault((len(KINDS & args.keys()), not choice.placed), []).append((choice, args))
    for _, alike in sorted(groups.items(), reverse=True):
        for runs in (runs_on_meta, short_run):
            for choice, args in alike:
                if runs(made.module, args) is not None:
                    return choice
    return max(tried, key=lambda one: len(one[1]))[0] if tried else Choice()


@lru_cache(maxsize=4)
def towers_of(maker: Maker) -> Towers:
    """The towers of that module, which neither sizes nor dtype change."""
    made, choice = made_of(maker, None, None), choice_of(maker, None, None)
    return towers(made.module, example_inputs(_small(made, choice), None, choice.names).args) if choice.names else NONE


def _small(made: Made, choice: Choice, side: int | None = None) -> Case:
    most = longest(made.module)
    return choice.of(Case(made.module, 2, USUAL if most is None else min(USUAL, most), TARGET_LENGTH, side))


@lru_cache(maxsize=8)
def places_of(maker: Maker, dtype: Dtype | None, attention: AttentionKind | None, side: int | None) -> int:
    """Positions of a text that one element's image or sound fills; 0 where the module takes none."""
    made, choice = made_of(maker, dtype, attention), choice_of(maker, dtype, attention)
    if set(choice.names or ()) <= {"input_ids"}:
        return 0
    from costproof.models.generic.places import places

    case = _small(made, choice, side)
    return -(-places(made.module, example_inputs(case, None, choice.names).args) // case.batch)


def _shapes(args: Mapping[str, Any]) -> dict[str, Any]:
    return {n: (type(v), tuple(v.shape)) if has_attribute(v, "shape") else v for n, v in args.items()}
