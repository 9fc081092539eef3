"""Define configurations of decoder-only models: the fields that families share, and how a ``config.json`` is read.

A family subclasses :class:`DecoderConfig` and adds its fields, their keys, and the defaults of the class in
transformers for keys that a file omits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, ClassVar, Final, Self

from costproof.configs.config import NativeConfig, activation, check_padding, check_returns, check_type, yes_or_no
from costproof.configs.reader import LARGEST, Section, renamed, shown
from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.workload import BatchRow

SIZES: Final = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
}
"""Keys in the file of the required fields, by field."""
_ROPES: Final = ("default", "linear", "llama3", "yarn")
"""Kinds of RoPE scaling that change the frequencies only once, when the model is built."""
_REQUIRED: Final = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""Numbers that transformers requires for RoPE scaling, by kind of scaling."""
_KINDS: Final = {"full_attention": "f", "sliding_attention": "w"}


@dataclass(frozen=True, slots=True)
class DecoderConfig(NativeConfig):
    """Sizes and flags that every decoder has."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    """Longest context, in tokens."""
    tied: bool = False
    """Whether the output projection and the embedding share one table."""
    activation: str = "silu"
    waived: tuple[tuple[str, str], ...] = ()
    """Keys of the file that affect no cost, with the reason."""

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
    """Keys in the file, by field."""
    class_defaults: ClassVar[Mapping[str, Any]] = {}
    """Values that the class in transformers assumes for omitted keys, by key.

    Without an entry: as many key/value heads as heads, heads that share the width, and ``False`` for flags.
    """
    not_null: ClassVar[tuple[str, ...]] = ("initializer_range", "rms_norm_eps", "use_cache")
    number_flags: ClassVar[Mapping[str, float]] = {}
    """Flags that a file sets by a number and unsets by ``null``: the number to write for a set flag, by field."""
    heads_divide: ClassVar[bool] = True
    """Whether transformers requires ``hidden_size % num_attention_heads == 0``."""
    rotates: ClassVar[bool] = True
    """Whether the class has rotary embeddings, so that their keys are read."""
    pads: ClassVar[bool] = True
    """Whether the token embedding of the class has a row for padding."""
    one_mask: ClassVar[bool] = False
    """Whether the class builds one mask for all layers.

    Classes that distinguish kinds of layers build one mask per kind, including one for full attention even if no layer
    has it.
    """
    unused_keys: ClassVar[Mapping[str, str]] = {}
    """Keys of this family that affect no cost, with the reason."""
    ranges: ClassVar[Mapping[str, range]] = {}
    """Values of the parameters that a proof draws in addition to the sizes of every decoder, by parameter."""
    derived: ClassVar[Mapping[str, str]] = {}
    """Expressions of symbols in drawn parameters, by symbol; they override or extend those of every decoder."""

    def symbols(self) -> dict[str, int]:
        """Return the values of this configuration by symbol, such as 4096 for ``text_hidden``."""
        named = ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab")
        return {f"text_{name}": getattr(self, name) for name in named}

    def windows(self) -> tuple[int, ...]:
        """Return the sliding-window length of each layer, 0 for full attention; empty if no layer has a window."""
        return ()

    def saves_by_absorbing(self, row: BatchRow) -> bool:
        """Return ``False``: only latent attention has an expansion that can be absorbed."""
        return False

    def layer_kinds(self) -> tuple[tuple[int, bool], ...]:
        """Return (window length or 0, whether it has a mixture of experts) of each layer."""
        return tuple((window, False) for window in self.windows() or (0,) * self.layers)

    def native(self) -> dict[str, Any]:
        yes = {self.keys[f]: number if getattr(self, f) else None for f, number in self.number_flags.items()}
        return renamed(self, self.keys) | yes

    @classmethod
    def read(cls, data: object, problems: list[CostproofError]) -> Self:
        """Parse the JSON value of a configuration file; append every error to ``problems``.

        The keys in ``SIZES`` are required. Other omitted keys have the default of the class in transformers.
        """
        top = Section(data, "$", problems)
        top.waive(cls.unused_keys)
        top.fixed("architectures", [cls.architecture], None, why="no formulas for this class", default=None)
        check_type(top, cls.model_type)
        scalings = rotation(top) if cls.rotates else []
        sizes, defaults = cls.read_sizes(top), cls.class_defaults
        flags: dict[str, Any] = {f: cls.read_flag(top, f) for f in cls.flag_names()}
        config = cls(
            **sizes,
            max_positions=longest_context(
                top.integer(cls.keys["max_positions"], defaults.get(cls.keys["max_positions"], 2048)), scalings
            ),
            activation=cls.read_activation(top),
            **flags,
            **cls.read_fields(top, sizes),
        )
        _check_kinds(top, config.layers)
        check_returns(top)
        if cls.pads:
            check_padding(top, config.vocab)
        config = replace(config, waived=top.finish(not_null=cls.not_null))
        problems += [] if problems else config.contradictions()
        return config

    @classmethod
    def caches_as(cls, data: Mapping[str, Any]) -> bool:
        """Return whether the cache class of transformers holds as many tokens as the formulas assume.

        The cache truncates to a window or chunk in the file even if the class of the model ignores these keys.
        """
        return cls.caches_all(data)

    @staticmethod
    def caches_all(data: Mapping[str, Any]) -> bool:
        """Return whether transformers would create an untruncated cache: the file names no window and no chunk size."""
        cut = any(data.get(key) is not None for key in ("sliding_window", "attention_chunk_size"))
        return not cut and _see_all(data.get("layer_types"))

    @classmethod
    def read_sizes(cls, top: Section) -> dict[str, Any]:
        """Return the sizes that every decoder has."""
        found = top.sizes({field: cls.keys[field] for field in SIZES})
        shares = {"kv_heads": found["heads"], "head_dim": found["hidden"] // found["heads"]}
        for field, share in shares.items():
            value = top.take(cls.keys[field], cls.class_defaults.get(cls.keys[field]))
            found[field] = share if value is None else top.check_integer(value, cls.keys[field])
        return found

    @classmethod
    def flag_names(cls) -> tuple[str, ...]:
        """Return the names of the boolean fields."""
        return tuple(f.name for f in fields(cls) if f.type == "bool")

    @classmethod
    def read_flag(cls, top: Section, field: str) -> bool:
        """Return the value of a boolean field in the file."""
        key = cls.keys[field]
        default = cls.class_defaults.get(key)
        if field not in cls.number_flags:
            return yes_or_no(top, key, default=bool(default))
        return top.take(key, default) is not None and top.number(key, default or cls.number_flags[field]) > 0

    @classmethod
    def read_activation(cls, top: Section) -> str:
        """Return the name of the activation function."""
        key = cls.keys["activation"]
        return activation(top, key, cls.class_defaults.get(key, "silu"))

    @classmethod
    def read_fields(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Return the fields that only this family has, other than flags."""
        return {}

    @classmethod
    def draw_fields(cls, sizes: Mapping[str, int], rng: Random) -> dict[str, Any]:
        """Draw random values of the fields that ``random_config`` does not set, for a proof.

        Args:
            sizes: values of the drawn parameters, including those of ``ranges``.
            rng: source of all choices that are not sizes.
        """
        return {}

    def contradictions(self) -> list[CostproofError]:
        """Return an error for each combination of sizes that the class in transformers rejects or cannot run."""
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
            found.append(
                BadInput(
                    "a head must have an even width, since rotary embedding rotates pairs of elements",
                    where=where,
                    expected="an even width",
                    got=self.head_dim,
                )
            )
        return found


def longest_context(positions: int, scalings: Iterable[Any]) -> int:
    """Return the longest context of a model in tokens, from its positions and its RoPE scalings.

    YaRN extends the positions of the training by a factor. A file may contain the extended length, or only the original
    one and the factor: Qwen2.5 has 32,768 and a factor of 4.

    Args:
        positions: ``max_position_embeddings``.
        scalings: RoPE scalings of the file.

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
    """Check the rotary embedding in a file and return its scalings.

    Constant frequencies decide no cost. Scalings that change them during a run are refused.
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
                what = "the formulas do not describe this type of RoPE scaling"
                top.problem(what, key, expected=" or ".join(_ROPES), got=shown(kind))
            elif isinstance(one, dict):
                _check_scaling(top, key, kind, one)
    return found


def _check_scaling(top: Section, key: str, kind: str, scaling: Mapping[str, Any]) -> None:
    """Check that a RoPE scaling states the numbers that transformers needs to build and run it."""
    for name in _REQUIRED.get(kind, ()):
        value = scaling.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name not in scaling or not (number or (kind == "yarn" and value is None)):
            what, got = f"a rotation of the kind {kind} needs it", shown(value) if name in scaling else "no such key"
            top.problem(what, f"{key}.{name}", expected="a number", got=got)
    part = scaling.get("partial_rotary_factor", top.data.get("partial_rotary_factor", 1))
    if kind != "default" and part not in (None, 1):
        what = "the class rotates whole heads, but this factor gives angles for a part of each"
        top.problem(what, f"{key}.partial_rotary_factor", expected="1", got=shown(part))


@dataclass(frozen=True, slots=True)
class WindowedConfig(DecoderConfig):
    """Configuration of a decoder in which some or all layers attend to a sliding window."""

    window: int = 0
    """Number of keys that a query sees in windowed layers, its own included; 0 if no layer has a window."""
    pattern: str = "f"
    """Attention kinds of layers, repeated over the depth: ``w`` for a window, ``f`` for full attention."""

    patterns: ClassVar[tuple[str, ...]] = ("f", "w", "wf", "fw")
    """Values of ``pattern`` that a proof draws from."""

    @classmethod
    def caches_as(cls, data: Mapping[str, Any]) -> bool:
        """Return whether the cache class of transformers holds as many tokens as the formulas assume."""
        return not cls.one_mask or (data.get("attention_chunk_size") is None and data.get("layer_types") is None)

    def windows(self) -> tuple[int, ...]:
        kinds = (self.pattern * self.layers)[: self.layers]
        return tuple(self.window if kind == "w" else 0 for kind in kinds)

    def symbols(self) -> dict[str, int]:
        return DecoderConfig.symbols(self) | ({"text_window": self.window} if any(self.windows()) else {})

    def native(self) -> dict[str, Any]:
        names = {letter: name for name, letter in _KINDS.items()}
        types = [names["w" if window else "f"] for window in self.windows()]
        kinds = {} if self.one_mask else {"layer_types": types}
        return {**DecoderConfig.native(self), "sliding_window": self.window or None, **kinds}

    def contradictions(self) -> list[CostproofError]:
        found = DecoderConfig.contradictions(self)
        if 0 < self.window < LEAST_WINDOW:
            expected = f"at least {LEAST_WINDOW}"
            found.append(
                BadInput("the window is too short", where="$.sliding_window", expected=expected, got=self.window)
            )
        return found


def _check_kinds(top: Section, layers: int) -> None:
    """Check that ``layer_types``, if the class ignores it, has one entry for each layer, as transformers requires."""
    types = top.data.get("layer_types")
    if "layer_types" not in top.known and isinstance(types, list) and len(types) != layers:
        what = "transformers requires one kind of attention for each layer"
        top.problem(what, "layer_types", expected=f"{layers} kinds", got=len(types))


def _see_all(types: object) -> bool:
    """Return whether ``layer_types`` of a file, if present, contains only full attention."""
    return not isinstance(types, list) or all(kind == "full_attention" for kind in types)


LEAST_WINDOW: Final = 5
"""Shortest window with which a prompt shorter than the window can still be exported."""


def window_of_all(top: Section, default: int | None = None) -> dict[str, Any]:
    """Read ``window`` and ``pattern`` where ``sliding_window`` applies to every layer; ``null`` means no window."""
    window = top.take("sliding_window", default)
    return {"window": 0 if window is None else top.check_integer(window, "sliding_window"), "pattern": "w"}


def pattern_of(top: Section, layers: int, default: str) -> str:
    """Read ``layer_types``, or repeat ``default``, as a pattern: ``w`` for a window, ``f`` for full attention."""
    types = top.take("layer_types", None)
    if types is None:
        return shortest((default * layers)[:layers])
    known = isinstance(types, list) and all(isinstance(t, str) and t in _KINDS for t in types)
    if not known or len(types) != layers:
        expected = f"a list of {layers}, each {' or '.join(_KINDS)}"
        top.problem("these are not the layers' kinds of attention", "layer_types", expected=expected, got=shown(types))
        return "f"
    return shortest("".join(_KINDS[t] for t in types))


def shortest(letters: str) -> str:
    """Return the shortest string whose repetition gives these letters: ``wf`` for ``wfwf``."""
    lengths = range(1, len(letters) + 1)
    return next(letters[:n] for n in lengths if (letters[:n] * len(letters))[: len(letters)] == letters)


@dataclass(frozen=True, slots=True)
class LateWindowedConfig(WindowedConfig):
    """Configuration whose first ``max_window_layers`` layers have full attention, if windows are used at all."""

    @classmethod
    def read_fields(cls, top: Section, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Read ``window`` and ``pattern``; return no fields unless ``use_sliding_window`` is set."""
        layers, used = sizes["layers"], yes_or_no(top, "use_sliding_window")
        window, first = top.take("sliding_window", 4096), top.integer("max_window_layers", 28, least=0)
        pattern = pattern_of(top, layers, ("f" * min(first, layers) + "w" * layers)[:layers])
        if not used or window is None:
            if "w" in pattern and top.data.get("layer_types") is not None:
                expected = "use_sliding_window and sliding_window, or only full_attention"
                top.problem("layers have a window that is not in use", "layer_types", expected=expected, got=pattern)
            return {}
        return {"window": top.check_integer(window, "sliding_window"), "pattern": pattern}

    def native(self) -> dict[str, Any]:
        return {**WindowedConfig.native(self), "use_sliding_window": any(self.windows())}


UNUSED_ROUTER_KEYS: Final = {"router_aux_loss_coef": "affects only training"}
"""Keys of most mixtures of experts that affect no cost, with the reason."""


@dataclass(frozen=True, slots=True)
class MixtureConfig(WindowedConfig):
    """Configuration with mixtures of experts, each expert by default ``intermediate`` wide."""

    experts: int = 8
    """Number of routed experts per layer."""
    top_k: int = 2
    """Number of routed experts that process each token."""

    keys: ClassVar[Mapping[str, str]] = {
        **WindowedConfig.keys,
        "experts": "num_local_experts",
        "top_k": "num_experts_per_tok",
    }
    ranges: ClassVar[Mapping[str, range]] = {
        "text_experts": range(8, 41),
        "text_topk": range(1, 9),
        "text_moe_rows": range(1, 41),
    }
    derived: ClassVar[Mapping[str, str]] = {
        "text_hidden": "8*text_kv_heads*text_groups*text_share",
        "text_moe": "8*text_moe_rows",
    }
    """Derived symbols; the factor 8, for grouped GEMMs with rows of a multiple of 16 bytes, does not affect degrees."""

    def routed(self) -> tuple[bool, ...]:
        """Return whether each layer has a mixture of experts, layer by layer."""
        return (True,) * self.layers

    def layer_kinds(self) -> tuple[tuple[int, bool], ...]:
        """Return (window length or 0, whether it has a mixture of experts) of each layer."""
        return tuple((w, m) for (w, _), m in zip(WindowedConfig.layer_kinds(self), self.routed(), strict=True))

    def symbols(self) -> dict[str, int]:
        found = WindowedConfig.symbols(self)
        moe = found.pop("text_intermediate")
        return {**found, "text_experts": self.experts, "text_topk": self.top_k, "text_moe": moe}

    @classmethod
    def draw_fields(cls, sizes: Mapping[str, int], rng: Random) -> dict[str, Any]:
        """Draw random numbers of experts, and random values of the other fields of mixtures, for a proof."""
        return {
            "hidden": sizes["row"] * sizes["text_kv_heads"] * sizes["text_groups"] * sizes["text_share"],
            "intermediate": sizes["row"] * sizes["text_moe_rows"],
            "experts": sizes["text_experts"],
            "top_k": sizes["text_topk"],
        }

    def contradictions(self) -> list[CostproofError]:
        found = WindowedConfig.contradictions(self)
        if self.top_k > self.experts:
            where, expected = f"$.{self.keys['top_k']}", f"at most {self.experts}, the experts of a layer"
            found.append(
                BadInput(
                    "a token cannot be routed to more experts than a layer has",
                    where=where,
                    expected=expected,
                    got=self.top_k,
                )
            )
        return found


def experts_of(top: Section, defaults: MixtureConfig, *aliases: str) -> dict[str, Any]:
    """Read ``experts`` and ``top_k`` from a configuration file.

    Args:
        defaults: as for :func:`number_of`.
        aliases: other keys for the number of experts.
    """
    top.fixed("output_router_logits", False, why="the formulas do not describe the loss that is made of these")
    other = next((key for key in aliases if key in top.data), None)
    if other is not None and (own := defaults.keys["experts"]) in top.data:
        top.fixed(own, top.data[other], why="the class has one number of experts under both keys")
    experts = number_of(top, defaults, "experts") if other is None else top.integer(other)
    return {"experts": experts, "top_k": number_of(top, defaults, "top_k")}


def number_of(top: Section, defaults: MixtureConfig, field: str, *, least: int = 1) -> int:
    """Read the integer value of a field; an omitted key has the default of the class in transformers.

    Args:
        defaults: the published configuration. If the key is omitted, the value is the one in its ``class_defaults``, or
            else its field. ``None`` in ``class_defaults`` makes the key required.
    """
    key = defaults.keys[field]
    default = defaults.class_defaults.get(key, getattr(defaults, field))
    return top.integer(key, least=least) if default is None else top.integer(key, default, least=least)
