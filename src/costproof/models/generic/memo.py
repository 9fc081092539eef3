"""Memoize, per process, facts about a factory's module: caches, towers, default inputs, placeholder tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, get_args

from costproof.ledger.attributes import attribute, has_attribute
from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.offline import offline
from costproof.ledger.workload import AttentionKind, Dtype, Workload
from costproof.models.decoding.decoder import text_config
from costproof.models.generic.caches import HeldCache, OwnCache, own_cache
from costproof.models.generic.encoder_decoder import FirstRun, first_run, of_encoder
from costproof.models.generic.factories import DEFAULT_DTYPE, Cuttable, Given, Made, ModuleMaker
from costproof.models.generic.inputs import KINDS, example_inputs, input_choices
from costproof.models.generic.makers import PLACEHOLDERS, Case
from costproof.models.generic.stages import longest
from costproof.models.generic.towers import NONE, Towers, towers
from costproof.models.generic.truncation import CutModel
from costproof.models.specs import RUNS_ALL
from costproof.snapshots.copies import runs_on_meta, short_run
from costproof.snapshots.described import fingerprint

if TYPE_CHECKING:
    import torch
    from torch import nn


_CACHED: Final = ("num_kv_heads", "num_key_value_heads")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")
_PASSED: Final = "num_experts_per_tok"
_ROWS: Final = (2, 3)
"""Batch and length of the run that determines how many rows the experts receive."""


def beyond(module: nn.Module, text: Any, cache: object) -> tuple[str, ...]:
    """Return a note for each kind of work that the class does beyond its configuration: a larger cache, all experts.

    Args:
        module: the model, on meta.
        text: the configuration of its decoder.
        cache: its cache.
    """
    return tuple(filter(None, (_cached(text, cache), _experts(module, text))))


def _cached(text: Any, cache: object) -> str | None:
    named = next((n for key in _CACHED if isinstance(n := attribute(text, key), int)), None)
    if named is None or not isinstance(cache, OwnCache):
        return None
    heads = max(layer.keys[0] for layer in cache.layers)
    if heads <= named:
        return None
    return f"the class caches keys and values of {heads} heads; the configuration names {named}, which servers cache"


def _experts(module: nn.Module, text: Any) -> str | None:
    import torch

    count = next((n for key in _EXPERTS if isinstance(n := attribute(text, key), int)), None)
    passed = attribute(text, _PASSED)
    if count is None or not isinstance(passed, int) or passed >= count:
        return None
    rows: set[int] = set()
    stacked = [m for m in module.modules() if any(p.dim() == 3 and p.shape[0] == count for p in _own(m))]
    hooks = [m.register_forward_pre_hook(_noting(rows)) for m in stacked]
    try:
        runs_on_meta(module, {"input_ids": torch.zeros(_ROWS, dtype=torch.long, device="meta")})
    finally:
        for hook in hooks:
            hook.remove()
    if count * _ROWS[0] * _ROWS[1] not in rows:
        return None
    return f"{RUNS_ALL} {count} experts for every token; the configuration names {passed}, which servers run"


def _own(module: nn.Module) -> list[Any]:
    return [p for p in module._parameters.values() if p is not None]


def _noting(rows: set[int]) -> Callable[..., None]:
    def note(module: nn.Module, args: Any) -> None:
        rows.update(int(a.numel()) // int(a.shape[-1]) for a in args[:1] if attribute(a, "shape"))

    return note


USUAL: Final = 512
"""Default length of a prompt in tokens, unless the model has fewer positions."""
TARGET_LENGTH: Final = 29
"""Length of the decoder input of an encoder-decoder, in tokens."""


def made_of(maker: ModuleMaker, dtype: Dtype | None, attention: AttentionKind | None) -> Made:
    """Return the module that a factory builds, memoized per choice of options; a live module is not kept alive."""
    with offline():
        if isinstance(maker, Given):
            return maker.make(dtype, attention)
        return _kept(maker, *_as_chosen(maker, dtype, attention))


def _as_chosen(
    maker: ModuleMaker, dtype: Dtype | None, attention: AttentionKind | None
) -> tuple[Dtype | None, AttentionKind | None]:
    """Return the choices, or ``None`` for both if the factory makes the same module without them.

    Only a configuration without further configurations in it says so: parts choose their attention one by one.
    """
    if (dtype is None and attention is None) or isinstance(maker, Given) or not isinstance(maker, Cuttable):
        return dtype, attention
    config = attribute(_kept(maker, None, None).module, "config", None)
    own = maker.stored.dtype or DEFAULT_DTYPE, attribute(config, "_attn_implementation", None)
    same = dtype in (None, own[0]) and attention in (None, own[1]) and not attribute(config, "sub_configs", None)
    return (None, None) if same else (dtype, attention)


T = TypeVar("T")
P = ParamSpec("P")


class _Memoized(Generic[P, T]):
    """Memoized function of a model factory, a dtype and an attention implementation.

    Eight are kept, since a count asks for the whole model and two truncated ones in turn; of live modules four, since
    each keeps a module in memory.
    """

    def __init__(self, found: Callable[Concatenate[ModuleMaker, Dtype | None, AttentionKind | None, P], T]) -> None:
        self._kept, self._live = lru_cache(maxsize=8)(found), lru_cache(maxsize=4)(found)

    def __call__(
        self,
        maker: ModuleMaker,
        dtype: Dtype | None,
        attention: AttentionKind | None,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        if isinstance(maker, Given):
            return self._live(maker, dtype, attention, *args, **kwargs)  # type: ignore[arg-type]
        return self._kept(maker, *_as_chosen(maker, dtype, attention), *args, **kwargs)  # type: ignore[arg-type]

    def cache_clear(self) -> None:
        """Forget all results."""
        self._kept.cache_clear()
        self._live.cache_clear()


@lru_cache(maxsize=6)
def _kept(maker: ModuleMaker, dtype: Dtype | None, attention: AttentionKind | None) -> Made:
    return maker.make(dtype, attention)


@lru_cache(maxsize=8)
def first_layers_of(maker: Cuttable, layers: int, *, more: bool = False) -> tuple[ModuleMaker, CutModel]:
    """Return the factory of a truncated module, and a description of the truncation, memoized."""
    return maker.first_layers(layers, more=more)


def fingerprint_of(maker: ModuleMaker) -> str:
    """Return the fingerprint of the module, and the integers of its configuration."""
    return _of(maker) if isinstance(maker, Given) else _fingerprint(maker)


@lru_cache(maxsize=8)
def _fingerprint(maker: ModuleMaker) -> str:
    return _of(maker)


def _of(maker: ModuleMaker) -> str:
    return fingerprint(made_of(maker, None, None).module, maker.numbers)


@_Memoized
def _cache_or_why(
    maker: ModuleMaker, dtype: Dtype | None, attention: AttentionKind | None
) -> OwnCache | HeldCache | str | None:
    return own_cache(made_of(maker, dtype, attention).module)


def cache_of(maker: ModuleMaker, dtype: Dtype | None, attention: AttentionKind | None) -> OwnCache | HeldCache | None:
    """Return the key/value cache of the module; ``None`` if it has none."""
    found = _cache_or_why(maker, dtype, attention)
    return None if isinstance(found, str) else found


def why_one_stage(maker: ModuleMaker, dtype: Dtype | None, attention: AttentionKind | None) -> tuple[str, ...]:
    """Return a note with the reason if a module has a cache but no separate decode stage."""
    found = _cache_or_why(maker, dtype, attention)
    return (f"prefill and decode are one stage: {found}",) if isinstance(found, str) else ()


@_Memoized
def beyond_of(maker: ModuleMaker, dtype: Dtype | None, attention: AttentionKind | None) -> tuple[str, ...]:
    """Return the notes of :func:`beyond` on the factory's module."""
    module = made_of(maker, dtype, attention).module
    config = attribute(module, "config", None)
    text = text_config(module) if has_attribute(config, "get_text_config") else config
    return beyond(module, text, cache_of(maker, dtype, attention))


@_Memoized
def first_run_of(
    maker: ModuleMaker, dtype: Dtype | None, attention: AttentionKind | None, batch: int, length: int
) -> FirstRun | None:
    """Return the :class:`FirstRun` of an encoder-decoder on meta, or ``None`` for other modules."""
    made = made_of(maker, dtype, attention)
    if not attribute(attribute(made.module, "config", None), "is_encoder_decoder", False):
        return None
    choice = choice_of(maker, dtype, attention)
    case = choice.of(Case(made.module, batch, length, TARGET_LENGTH))
    return first_run(made.module, of_encoder(example_inputs(case, None, choice.names)).args)


@dataclass(frozen=True, slots=True)
class Choice:
    """Choice of the arguments that a module gets as its example inputs."""

    names: tuple[str, ...] | None = None
    """Names of the arguments; ``None`` for the default arguments."""
    turned: bool = False
    """Whether inputs have the alternative layout: images one after another, frames before mel bins."""
    placed: bool = False
    """Whether the text must contain placeholder tokens of images or sounds."""

    def of(self, case: Case, filled: int | None = None) -> Case:
        """Return the case for this choice with ``filled`` placeholder tokens (default: the whole text)."""
        most = case.length if filled is None else filled
        return replace(case, turned=self.turned, filled=most if self.placed else None)


@_Memoized
def choice_of(maker: ModuleMaker, dtype: Dtype | None, attention: AttentionKind | None) -> Choice:
    """Return the first choice of example inputs with which the module runs, or the largest choice if none runs.

    More images and sounds take precedence, also if the module then runs only with ones and not on meta.
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


@lru_cache(maxsize=8)
def towers_of(maker: ModuleMaker) -> Towers:
    """Return the towers of the module, which do not depend on sizes or dtype."""
    made, choice = made_of(maker, None, None), choice_of(maker, None, None)
    return towers(made.module, example_inputs(_small(made, choice), None, choice.names).args) if choice.names else NONE


def _small(made: Made, choice: Choice, side: int | None = None) -> Case:
    most = longest(made.module)
    return choice.of(Case(made.module, 2, USUAL if most is None else min(USUAL, most), TARGET_LENGTH, side))


@_Memoized
def places_of(maker: ModuleMaker, dtype: Dtype | None, attention: AttentionKind | None, side: int | None) -> int:
    """Return how many text positions per batch element are placeholders of images or sounds, or 0."""
    made, choice = made_of(maker, dtype, attention), choice_of(maker, dtype, attention)
    if set(choice.names or ()) <= {"input_ids"}:
        return 0

    case = _small(made, choice, side)
    return -(-places(made.module, example_inputs(case, None, choice.names).args) // case.batch)


@dataclass(frozen=True, slots=True)
class OperatorGrowth:
    """Number of operators of a forward that loops over the tokens of its prompt, by prompt length."""

    base: int
    """Operators that do not depend on the length."""
    per_token: int

    def at(self, length: int) -> int:
        """Return the number of operators for a prompt of this length in tokens."""
        return self.base + self.per_token * length

    def longest(self) -> int:
        """Return the longest prompt, a power of two, that is traced within a minute."""
        return next((n for n in (256, 128, 64, 32, 16, 8, 4, 2) if self.at(n) <= USUAL_OPERATORS), 1)

    def problems(self, workload: Workload) -> list[BadInput]:
        """Return an error if a workload has more operators than can be traced within some minutes."""
        if self.at(workload.text_tokens) <= MOST_OPERATORS:
            return []
        error = BadInput(
            "the class loops over the tokens of a prompt, and a run has too many operators to trace",
            where=f"--seq-len {workload.text_tokens}",
            expected=f"at most {MOST_OPERATORS:,} operators",
            got=f"{self.at(workload.text_tokens):,}, {self.per_token:,} of them for each token",
            fix=f"--seq-len {self.longest()} takes less than a minute",
        )
        return [error]

    def note(self, workload: Workload) -> str:
        """Return a note on the prompt length and the operators that it leads to."""
        return (
            f"the class loops over the tokens of a prompt, {self.per_token:,} operators for each: the prompt has "
            f"{workload.text_tokens}, and {USUAL} would have {self.at(USUAL):,} operators"
        )


USUAL_OPERATORS: Final = 20_000
"""Number of operators that are traced and exported within a minute on two cores."""
MOST_OPERATORS: Final = 60_000
"""Maximum number of operators of a run, if the number grows with the prompt."""
_LENGTHS: Final = (8, 16)
"""Prompt lengths at which operators are counted."""


def growth_of(maker: ModuleMaker, dtype: Dtype | None, attention: AttentionKind | None) -> OperatorGrowth | None:
    """Return the growth of the number of operators with the prompt; ``None`` if it does not grow, or stays small.

    Selective scans without their kernels and recurrent cells loop over the tokens in Python. A module with its own
    inputs is not run, nor kept alive.
    """
    if isinstance(maker, Given) or made_of(maker, dtype, attention).inputs is not None:
        return None
    return _growth(maker, dtype, attention)


@_Memoized
def _growth(maker: ModuleMaker, dtype: Dtype | None, attention: AttentionKind | None) -> OperatorGrowth | None:
    made, choice = made_of(maker, dtype, attention), choice_of(maker, dtype, attention)
    case = choice.of(Case(made.module, 1, _LENGTHS[0], TARGET_LENGTH))
    first = _operators(made.module, case, choice)
    if first is None or first * USUAL <= USUAL_OPERATORS * _LENGTHS[0]:  # even if all of them grew with the prompt
        return None
    second = _operators(made.module, replace(case, length=_LENGTHS[1]), choice)
    per_token = 0 if second is None else (second - first) // (_LENGTHS[1] - _LENGTHS[0])
    growth = OperatorGrowth(first - per_token * _LENGTHS[0], per_token)
    return growth if per_token > 0 and growth.at(USUAL) > USUAL_OPERATORS else None


def _operators(module: nn.Module, case: Case, choice: Choice) -> int | None:
    """Return how many operators a run on meta calls, or ``None`` if it fails."""
    from torch.utils._python_dispatch import TorchDispatchMode

    mode: Any = TorchDispatchMode
    calls = 0

    class Counting(mode):  # type: ignore[misc]
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal calls
            calls += 1
            return operator(*args, **(kwargs or {}))

    with suppress(Incomplete), Counting():
        if runs_on_meta(module, example_inputs(case, None, choice.names).args) is not None:
            return calls
    return None


def _shapes(args: Mapping[str, Any]) -> dict[str, Any]:
    return {n: (type(v), tuple(v.shape)) if has_attribute(v, "shape") else v for n, v in args.items()}


TEXT_ALONE: Final = 0
"""Image size that stands for text-only input, for models that also take images."""


def side_of(workload: Workload) -> int | None:
    """Return the chosen image size in pixels per side, or ``None``."""
    side = workload.inputs.get("image_size")
    return side if isinstance(side, int) else None


def too_short(workload: Workload, filled: int) -> list[BadInput]:
    """Return an error if a prompt is shorter than the placeholders of its images or sounds."""
    if workload.text_tokens >= filled:
        return []
    what = "the prompt is shorter than the placeholder tokens of its images or sounds"
    fix = "a longer prompt; for images also --image-size 0, which leaves only the text"
    return [BadInput(what, where="--seq-len", expected=f"at least {filled}", got=workload.text_tokens, fix=fix)]


def case_of(made: Made, workload: Workload) -> Case:
    """Return the case, the module and sizes, for which example inputs are created."""
    import torch

    return Case(
        made.module,
        workload.batch,
        workload.text_tokens,
        TARGET_LENGTH if workload.text_tokens != TARGET_LENGTH else TARGET_LENGTH + 2,
        side_of(workload),
        getattr(torch, workload.dtype),
        str(workload.inputs.get("input") or ""),
    )


def dtype_of(module: nn.Module, inputs: Mapping[str, Any] | None = None) -> Dtype:
    """Return the dtype of most parameter elements of a module; float32 if workloads cannot have that dtype.

    Args:
        module: the module.
        inputs: arguments of its call, whose elements decide if it has no parameters.
    """
    import torch
    from torch.nn.parameter import is_lazy
    from torch.utils._pytree import tree_leaves

    given = (t for t in tree_leaves(dict(inputs or {})) if isinstance(t, torch.Tensor))
    for tensors in (module.parameters(), given):
        elements = Counter[str]()
        for p in tensors:
            if p.is_floating_point() and not is_lazy(p):  # a run gives it its shape
                elements[str(p.dtype).removeprefix("torch.")] += p.numel()
        if elements:
            break
    name = max(elements, key=lambda dtype: elements[dtype], default="float32")
    return name if name in get_args(Dtype) else "float32"  # type: ignore[return-value]


def dtypes_of(module: nn.Module) -> tuple[str, ...]:
    """Return the dtypes of a module's parameters."""
    return tuple(sorted({str(p.dtype).removeprefix("torch.") for p in module.parameters()}))


def attention_of(module: nn.Module) -> AttentionKind:
    """Return the attention implementation that a model of transformers uses by default."""
    config = attribute(module, "config", None)
    # A configuration that was told nothing belongs to a model that has nothing to choose from.
    name = attribute(config, "_attn_implementation", "sdpa") or "eager"
    return name if name in get_args(AttentionKind) else "sdpa"  # type: ignore[return-value]


def _is_mask(key: Any) -> bool:
    import torch

    key = key[0] if isinstance(key, tuple) else key
    return isinstance(key, torch.Tensor) and key.dtype == torch.bool


def _rows(into: torch.Tensor, values: Any) -> int:
    import torch

    return int(values.numel()) // int(into.shape[-1]) if isinstance(values, torch.Tensor) else 0


def places(model: nn.Module, inputs: Mapping[str, Any]) -> int:
    """Return how many text positions of a batch the outputs of towers replace; 0 without towers."""
    ids = inputs.get("input_ids")
    if ids is None or len(inputs) == 1:
        return 0
    import torch
    from torch.overrides import TorchFunctionMode

    length, scattered, most = int(ids.shape[1]), 0, 0
    scatters = (torch.Tensor.masked_scatter, torch.Tensor.masked_scatter_, torch.masked_scatter)

    class Recorder(TorchFunctionMode):
        """Counts the rows that are scattered into a text tensor [B, S, width], by a mask or by indices."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal scattered, most
            into, *rest = args or (None,)
            if isinstance(into, torch.Tensor) and into.dim() == 3 and into.shape[1] == length and rest:
                if func in scatters:
                    scattered += _rows(into, (kwargs or {}).get("source", rest[-1]))
                elif func is torch.Tensor.__setitem__ and _is_mask(rest[0]):
                    most = max(most, _rows(into, rest[1]))
            return func(*args, **(kwargs or {}))

    with Recorder():
        short_run(model, inputs)
    return max(scattered, most)
