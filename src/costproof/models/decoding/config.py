"""Configurations of decoders that one class of transformers builds: what their files share, and how they are read.

A family is a subclass of :class:`TextConfig`: its fields beside the usual ones, their keys, and what the
class of transformers takes for a key that is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, ClassVar, Final, Self

from costproof.ledger.errors import BadInput, CostproofError
from costproof.models.native import NativeConfig, activation, check_type, yes_or_no
from costproof.models.section import LARGEST, Section, renamed, shown

SIZES: Final = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
}
"""Fields that a file must have -> their keys."""
_ROPES: Final = ("default", "linear", "llama3", "yarn")
"""Kinds of scaled rotation that change the frequencies once, when the model is built."""
_NEEDED: Final = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""Kind of a scaled rotation -> numbers that transformers does without in none."""
_KINDS: Final = {"full_attention": "f", "sliding_attention": "w"}


@dataclass(frozen=True, slots=True)
class TextConfig(NativeConfig):
    """Sizes that every such decoder has, and whether the output projection is the embedding's table."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    """Longest context."""
    tied: bool = False
    activation: str = "silu"
    waived: tuple[tuple[str, str], ...] = ()
    """Keys of the file that were read and not used, with the reason."""

    architecture: ClassVar[str]
    """The class of transformers that the formulas describe."""
    keys: ClassVar[Mapping[str, str]] = {
        **SIZES,
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "max_positions": "max_position_embeddings",
        "tied": "tie_word_embeddings",
        "activation": "hidden_act",
    }
    """Fields -> their keys in the file; what is yes or no is read as such."""
    left_out: ClassVar[Mapping[str, Any]] = {}
    """Keys -> what the class of transformers takes where they are left out; without: heads for key/value heads,
    their share of the width for one head, no for yes or no."""
    numbers: ClassVar[Mapping[str, float]] = {}
    """Fields that are yes where a file has a number, and no where it has ``null`` -> a number that stands for yes."""
    heads_divide: ClassVar[bool] = True
    """Whether the class has a model only where the heads divide the width; others have heads of any width."""
    one_mask: ClassVar[bool] = False
    """Whether the class makes one mask for all layers, since it knows no kinds of them; others make one of each kind,
    and that of the layers that see all even where there are none."""
    beside: ClassVar[Mapping[str, str]] = {}
    """Keys of this family that decide no cost, with the reason."""
    ranges: ClassVar[Mapping[str, range]] = {}
    """What a proof draws beside the sizes of every decoder: parameter -> its values."""
    follows: ClassVar[Mapping[str, str]] = {}
    """Symbols that follow from drawn parameters in another way than in every decoder, or in addition."""

    def symbols(self) -> dict[str, int]:
        """Values of the configuration's symbols, as the formulas name them."""
        named = ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab")
        return {f"text_{name}": getattr(self, name) for name in named}

    def windows(self) -> tuple[int, ...]:
        """For every layer how many keys a query sees, or 0 for all; empty: no layer has a window."""
        return ()

    def layer_kinds(self) -> tuple[tuple[int, bool], ...]:
        """For every layer its window, or 0, and whether it has a mixture of experts."""
        return tuple((window, False) for window in self.windows() or (0,) * self.layers)

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        yes = {self.keys[f]: number if getattr(self, f) else None for f, number in self.numbers.items()}
        return renamed(self, self.keys) | yes

    @classmethod
    def read(cls, data: object, problems: list[CostproofError]) -> Self:
        """A decoder in the value of a file.

        Widths and numbers of layers must be there; another key that is left out has the class's own default.
        """
        top = Section(data, "$", problems)
        top.waive(cls.beside)
        top.fixed("architectures", [cls.architecture], None, why="no formulas for this class", default=None)
        check_type(top, cls.model_type)
        scalings = rotation(top)
        sizes, usual = cls.sizes(top), cls.left_out
        flags: dict[str, Any] = {f: cls.flag(top, f) for f in cls.flags()}
        config = cls(
            **sizes,
            max_positions=longest_context(
                top.integer(cls.keys["max_positions"], usual.get(cls.keys["max_positions"], 2048)), scalings
            ),
            activation=cls.function(top),
            **flags,
            **cls.others(top, sizes),
        )
        config = replace(config, waived=top.finish())
        problems += [] if problems else config.contradictions()
        return config

    @classmethod
    def caches_as(cls, data: Mapping[str, Any]) -> bool:
        """Whether a cache of transformers keeps the tokens that the formulas say.

        It cuts what it keeps to a window or chunk that a file names, though the class of the model reads neither.
        """
        cut = any(data.get(key) is not None for key in ("sliding_window", "attention_chunk_size"))
        return not cut and _see_all(data.get("layer_types"))

    @classmethod
    def sizes(cls, top: Section) -> dict[str, Any]:
        """The sizes of every decoder."""
        found = top.sizes({field: cls.keys[field] for field in SIZES})
        shares = {"kv_heads": found["heads"], "head_dim": found["hidden"] // found["heads"]}
        for field, share in shares.items():
            value = top.take(cls.keys[field], cls.left_out.get(cls.keys[field]))
            found[field] = share if value is None else top.check_integer(value, cls.keys[field])
        return found

    @classmethod
    def flags(cls) -> tuple[str, ...]:
        """The fields that are yes or no."""
        return tuple(f.name for f in fields(cls) if f.type == "bool")

    @classmethod
    def flag(cls, top: Section, field: str) -> bool:
        """One of them, as the file has it."""
        key = cls.keys[field]
        usual = cls.left_out.get(key)
        if field not in cls.numbers:
            return yes_or_no(top, key, default=bool(usual))
        return top.take(key, usual) is not None and top.number(key, usual or cls.numbers[field]) > 0

    @classmethod
    def function(cls, top: Section) -> str:
        """The activation."""
        key = cls.keys["activation"]
        return activation(top, key, cls.left_out.get(key, "silu"))

    @classmethod
    def others(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The fields of the family that are neither sizes of every decoder nor yes or no."""
        return {}

    @classmethod
    def random(cls, sizes: Mapping[str, int], rng: Random) -> dict[str, Any]:
        """The fields of a random configuration that are not drawn as for every decoder.

        Args:
            sizes: values of the parameters, those of ``ranges`` among them.
            rng: for what is not a size.
        """
        return {}

    def contradictions(self) -> list[CostproofError]:
        """Sizes that transformers' class refuses, or cannot run."""
        keys = self.keys
        found: list[CostproofError] = [
            BadInput(what, where=f"$.{key}", expected=f"a divisor of {whole}", got=part)
            for what, key, whole, part in (
                *((("the heads must divide the width", keys["heads"], self.hidden, self.heads),) * self.heads_divide),
                ("the key/value heads must divide the heads", keys["kv_heads"], self.heads, self.kv_heads),
            )
            if whole % part
        ]
        if self.head_dim % 2 or not self.head_dim:
            where = f"$.{keys['head_dim']}"
            found.append(BadInput("rotation needs pairs", where=where, expected="an even width", got=self.head_dim))
        return found


def longest_context(positions: int, scalings: Iterable[Any]) -> int:
    """Return the longest context of a model.

    YaRN stretches the positions that the model was trained on, which a file may name beside the longer context or
    alone: Qwen2.5 has 32,768 and a factor of 4.

    Args:
        positions: ``max_position_embeddings``.
        scalings: of its rotations.

    Raises:
        BadInput: a factor that gives no length, or one beyond the largest size of a configuration.
    """
    yarn = [s for s in scalings if isinstance(s, Mapping) and s.get("rope_type", s.get("type")) == "yarn"]
    found = [(s.get("factor"), s.get("original_max_position_embeddings") or positions) for s in yarn]
    lengths = (_stretched(f, n) for f, n in found if isinstance(f, int | float) and isinstance(n, int))
    return max(positions, *lengths, 0)


def _stretched(factor: float, original: int) -> int:
    """Return ``factor * original`` as an integer; floats overflow, and may be infinite or NaN."""
    with suppress(OverflowError, ValueError):
        if (length := int(factor * original)) <= LARGEST:
            return length
    what, where = "the factor of a YaRN rotation gives no length of a context", "$.rope_scaling.factor"
    raise BadInput(what, where=where, expected=f"factor * {original} of at most {LARGEST}", got=shown(factor))


def rotation(top: Section) -> list[Any]:
    """Check how positions are rotated, and return the scalings.

    Frequencies decide no cost, a rotation that changes them in a run would.
    """
    found: list[Any] = []
    top.take("partial_rotary_factor", None)
    for key in ("rope_scaling", "rope_parameters"):
        scaling = top.take(key, None) or {}
        nested = [scaling[kind] for kind in _KINDS if isinstance(scaling, dict) and scaling.get(kind)]
        for one in nested or [scaling]:
            found.append(one)
            kind = one.get("rope_type", one.get("type", "default")) if isinstance(one, dict) else one
            if kind not in _ROPES:
                what = "this rotation is not described by the formulas"
                top.problem(what, key, expected=" or ".join(_ROPES), got=shown(kind))
            elif isinstance(one, dict):
                _check_scaling(top, key, kind, one)
    return found


def _check_scaling(top: Section, key: str, kind: str, scaling: Mapping[str, Any]) -> None:
    """Check what transformers needs for a rotation; it builds none, or one that fails when it runs."""
    for name in _NEEDED.get(kind, ()):
        value = scaling.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name not in scaling or not (number or (kind == "yarn" and value is None)):
            what, got = f"a rotation of the kind {kind} needs it", shown(value) if name in scaling else "no such key"
            top.problem(what, f"{key}.{name}", expected="a number", got=got)
    part = scaling.get("partial_rotary_factor", top.data.get("partial_rotary_factor", 1))
    if kind != "default" and part not in (None, 1):
        what = "the class rotates whole heads, and has angles for a part"
        top.problem(what, f"{key}.partial_rotary_factor", expected="1", got=shown(part))


@dataclass(frozen=True, slots=True)
class WindowedConfig(TextConfig):
    """A configuration of a decoder of which some layers, or all, see a window of the context."""

    window: int = 0
    """Keys that a query sees in these layers, itself included; 0: no layer has a window."""
    pattern: str = "f"
    """Layers with a window are ``w``, those that see all are ``f``; repeated over the layers."""

    patterns: ClassVar[tuple[str, ...]] = ("f", "w", "wf", "fw")
    """Patterns that a proof draws."""

    @classmethod
    def caches_as(cls, data: Mapping[str, Any]) -> bool:
        """Whether a cache of transformers keeps the tokens that the formulas say: the class reads the window."""
        return not cls.one_mask or (data.get("attention_chunk_size") is None and data.get("layer_types") is None)

    def windows(self) -> tuple[int, ...]:
        """For every layer its window, or 0."""
        kinds = (self.pattern * self.layers)[: self.layers]
        return tuple(self.window if kind == "w" else 0 for kind in kinds)

    def symbols(self) -> dict[str, int]:
        """Values of the configuration's symbols, as the formulas name them."""
        return TextConfig.symbols(self) | ({"text_window": self.window} if any(self.windows()) else {})

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        names = {letter: name for name, letter in _KINDS.items()}
        types = [names["w" if window else "f"] for window in self.windows()]
        kinds = {} if self.one_mask else {"layer_types": types}
        return {**TextConfig.native(self), "sliding_window": self.window or None, **kinds}

    def contradictions(self) -> list[CostproofError]:
        """Sizes that transformers' class refuses, or cannot run."""
        found = TextConfig.contradictions(self)
        if 0 < self.window < LEAST_WINDOW:
            expected = f"at least {LEAST_WINDOW}"
            found.append(
                BadInput("the window is too short", where="$.sliding_window", expected=expected, got=self.window)
            )
        return found


def _see_all(types: object) -> bool:
    """Whether the kinds of layers in a file, if it has them, are all those that see the whole context."""
    return not isinstance(types, list) or all(kind == "full_attention" for kind in types)


LEAST_WINDOW: Final = 5
"""Shorter windows leave no length to export a prompt at that they do not cut."""


def window_of_all(top: Section, usual: int | None = None) -> dict[str, Any]:
    """The window of all layers; ``null`` for none, ``usual`` where it is left out."""
    window = top.take("sliding_window", usual)
    return {"window": 0 if window is None else top.check_integer(window, "sliding_window"), "pattern": "w"}


def pattern_of(top: Section, layers: int, usual: str) -> str:
    """The layers with a window, from ``layer_types`` of the file, or ``usual`` where it says nothing."""
    types = top.take("layer_types", None)
    if types is None:
        return shortest((usual * layers)[:layers])
    known = isinstance(types, list) and all(isinstance(t, str) and t in _KINDS for t in types)
    if not known or len(types) != layers:
        expected = f"a list of {layers}, each {' or '.join(_KINDS)}"
        top.problem("these are not the layers' kinds of attention", "layer_types", expected=expected, got=shown(types))
        return "f"
    return shortest("".join(_KINDS[t] for t in types))


@dataclass(frozen=True, slots=True)
class LateWindowedConfig(WindowedConfig):
    """One whose file says from which layer on they have a window, ``max_window_layers``, and whether at all."""

    @classmethod
    def others(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Window and pattern; none unless ``use_sliding_window``."""
        layers, used = sizes["layers"], yes_or_no(top, "use_sliding_window")
        window, first = top.take("sliding_window", 4096), top.integer("max_window_layers", 28, least=0)
        pattern = pattern_of(top, layers, ("f" * first + "w" * layers)[:layers])
        if not used or window is None:
            if "w" in pattern and top.data.get("layer_types") is not None:
                expected = "use_sliding_window and sliding_window, or full_attention alone"
                top.problem("layers have a window that is not in use", "layer_types", expected=expected, got=pattern)
            return {}
        return {"window": top.check_integer(window, "sliding_window"), "pattern": pattern}

    def native(self) -> dict[str, Any]:
        """Keyword arguments for the configuration class of transformers."""
        return {**WindowedConfig.native(self), "use_sliding_window": any(self.windows())}


def shortest(letters: str) -> str:
    """The shortest word whose repetition begins with these letters."""
    lengths = range(1, len(letters) + 1)
    return next(letters[:n] for n in lengths if (letters[:n] * len(letters))[: len(letters)] == letters)
