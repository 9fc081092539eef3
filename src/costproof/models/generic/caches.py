"""Find, measure and rebuild the caches of a model, and detect the cache of a decoder by a short run on meta."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.ledger.attributes import attribute, has_attribute
from costproof.ledger.errors import BadInput, Recount, check_recounts, first_line
from costproof.ledger.workload import Workload
from costproof.models.decoding.decoder import (
    Decoder,
    Locate,
    Past,
    config_of,
    ids_on_meta,
    in_prompt,
    in_step,
    on_meta,
    text_config,
)
from costproof.models.generic.towers import decoder_path
from costproof.models.specs import ExportJob, Run, SymbolicSize

if TYPE_CHECKING:
    import torch
    from torch import nn

CACHES: Final = (
    "past_key_values", "cache_params", "encoder_past_key_values", "decoder_past_key_values", "padding_cache",
)  # fmt: skip
"""Names of caches among the arguments and results of transformers models: text caches, and those of audio chunks."""

Path = tuple[tuple[str, Any], ...]
"""Access path into an object: attributes, and items of lists and dicts."""

_DEEPEST: Final = 7
"""Maximum nesting depth that is searched: a cache, its two halves, their layers, and a table of states."""


def caches_of(values: Any) -> dict[str, Any]:
    """Return the caches among the arguments or results of a forward by name; if there are none, those nested inside."""
    given = values if isinstance(values, Mapping) else {name: getattr(values, name, None) for name in CACHES}
    found = {name: given[name] for name in CACHES if given.get(name) is not None}
    inside = (caches_of(part) for part in given.values() if isinstance(part, Mapping))
    return found or next(filter(None, inside), {})


def is_cache(value: Any) -> bool:
    """Return whether a value is a cache object, which a forward fills in place."""
    return type(value).__name__.endswith("Cache") and hasattr(value, "__dict__")


def held(*caches: Any) -> int:
    """Return the bytes of the distinct floating-point tensors in some caches, without positions and lengths."""
    return sum(t.nbytes for t in states(*caches))


def states(*caches: Any) -> list[torch.Tensor]:
    """Return the distinct floating-point tensors in some caches."""
    return [leaf for _, leaf in leaves(caches) if not isinstance(leaf, int) and leaf.is_floating_point()]


def by_layer(cache: Any) -> list[int]:
    """Return the bytes of each layer of a single-stack cache, or ``[]`` for a cache without layers."""
    return [held(layer) for layer in (cache if isinstance(cache, tuple) else getattr(cache, "layers", ()))]


def leaves(value: Any, path: Path = (), seen: set[int] | None = None) -> Iterator[tuple[Path, Any]]:
    """Yield each tensor, once, and each integer in caches, with its access path; modules are not searched."""
    import torch

    seen = set() if seen is None else seen
    if isinstance(value, int):
        yield path, value
        return
    if id(value) in seen or len(path) > _DEEPEST or isinstance(value, type | torch.nn.Module):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if isinstance(value, Mapping):
        parts = [("item", key, part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [("item", i, part) for i, part in enumerate(value)]
    else:
        parts = [("attribute", key, part) for key, part in attribute(value, "__dict__", {}).items()]
    for kind, key, part in parts:
        yield from leaves(part, (*path, (kind, key)), seen)


_CHUNK: Final = "attention_chunk_size"
_RESULTS: Final = ("logits", "last_hidden_state")
"""Results of ``forward`` that are not part of a cache."""


@dataclass(frozen=True, slots=True)
class HeldCache:
    """Decoder whose cache layout is unknown; a prefill creates the cache for every context length."""

    model: nn.Module = field(compare=False)
    """Model that builds the caches; exports and runs use other copies."""
    name: str
    """Name of the cache argument of ``forward``."""
    towers: frozenset[str] = frozenset()
    """Modules that do not run on token ids alone: towers and projectors."""
    made: dict[tuple[int, int], Any] = field(default_factory=dict, compare=False)

    places: ClassVar[tuple[Locate, Locate]] = (in_prompt, in_step)
    """Functions that give the stage and invocation of a module: in the prefill, and in a decode step."""
    owners: ClassVar[tuple[str, ...]] = ()
    """Paths of the modules that write the layers: empty, since they are observed while they write."""

    def held(self, batch: int, context: int) -> Any:
        """Return the cache after ``context`` tokens on meta; callers must not modify it."""
        if (batch, context) not in self.made:
            self.made[batch, context] = prefilled(self.model, self.name, batch, context)
        return self.made[batch, context]

    def problems(self, workload: Workload) -> list[BadInput]:
        """Return an error if the cache does not grow evenly, so that costs of decode steps have no closed sum."""
        batch, first, steps = workload.batch, workload.context, workload.new_tokens
        if steps < 2 or grows_evenly(self.held(batch, first), self.held(batch, first + steps), steps):
            return []
        return [
            BadInput(
                "the cache does not grow by the same bytes in each decode step, so steps have no sum in closed form",
                where="--new-tokens",
                expected="1",
                got=steps,
            )
        ]

    def step_job(self, model: nn.Module, workload: Workload) -> ExportJob:
        """Return the export job of one decode step at the workload's sizes.

        Sizes that grow with the context are symbolic.
        """
        from costproof.models.generic.export_wrappers import StatefulStep

        batch, steps = workload.batch, max(1, workload.new_tokens)
        context = max(2, workload.context)  # an export takes a context of one token for a constant
        cache, later = self.held(batch, context), self.held(batch, context + steps)
        sizes, counters = list[SymbolicSize](), dict[Path, int]()
        if grows_evenly(cache, later, steps):
            more = self.held(batch + 1, context)
            sizes = [SymbolicSize(("input_ids",), 0, "B")]
            for name, tensors in (("states", states), ("places", held_places)):
                sizes += _sizes(name, tensors(cache), tensors(later), tensors(more), context)
            numbers = dict(_numbers(later))
            counters = {path: n - context for path, n in _numbers(cache) if numbers[path] != n}
        long = (s for s in sizes if s.symbol == "P" and s.argument[0] == "states")
        grown = next(((int(s.argument[1]), s.dim) for s in long), None)
        step = StatefulStep(model, self.name, cache, counters if grown else {}, grown or (0, 0))
        args: dict[str, Any] = {"input_ids": ids_on_meta(batch, 1), "states": states(cache)}
        if places := held_places(cache):
            args["places"] = places
        return ExportJob(
            "step", "decode", ("steps",), step, {"part": ""}, args, sizes, returns_cache=True, repeated=True,
            chunk=self.chunk,
        )  # fmt: skip

    @property
    def chunk(self) -> int:
        """Return the number of positions of a chunk within which layers attend; 0 without chunks."""
        return int(attribute(text_config(self.model), _CHUNK, None) or 0)

    def step_run(self, model: nn.Module, workload: Workload, context: int) -> Run:
        """Return the run of one decode step after ``context`` tokens."""
        cache = copied(self.held(workload.batch, context))
        kwargs = {"input_ids": ids_on_meta(workload.batch, 1), self.name: cache, "use_cache": True}
        return Run(f"step@{context}", model, kwargs, in_step, context, elsewhere=True)


def held_cache(model: nn.Module, result: Any, towers: frozenset[str]) -> HeldCache | str | None:
    """Return the decoder cache that the model's own prefill creates, found by a run of 3 tokens at batch 2.

    Returns a text, the reason, if decode steps on this cache are not supported, and ``None`` if there is no cache.
    """
    from costproof.snapshots.copies import short_run

    if result is None:
        return f"a short text does not run with a cache: {_refused(model, _text(3))}"
    for name, cache in caches_of(result).items():
        if states(cache):
            made = cache_on_meta(cache)
            # A run fills what it is given.
            runs = short_run(model, {**_text(1), name: copied(made)}) is not None
            found = HeldCache(model, name, towers, {(2, 3): made})
            return found if runs else f"a step does not run: {_refused(model, {**_text(1), name: copied(made)})}"
    other = [name for name in result if name not in _RESULTS] if isinstance(result, Mapping) else []
    return f"forward returns {', '.join(other)}, which is not known as a cache" if other else None


def _text(tokens: int) -> dict[str, Any]:
    return {"input_ids": ids_on_meta(2, tokens), "use_cache": True}


def _refused(model: nn.Module, kwargs: Mapping[str, Any]) -> str:
    """Return the error of a call on meta as text, or an empty string."""
    from costproof.patches.inference import inference_context
    from costproof.snapshots.copies import unchecked

    try:
        with unchecked(), inference_context(model):
            model(**kwargs)
    except Exception as error:  # code of other packages raises what it likes
        return first_line(error)
    return "unknown"


def prefilled(model: nn.Module, name: str, batch: int, context: int) -> Any:
    """Return the cache that a prefill of this length leaves on meta, or ``None`` if the model does not run."""
    from costproof.snapshots.copies import short_run

    result = short_run(model, {"input_ids": ids_on_meta(batch, context), "use_cache": True})
    return cache_on_meta(caches_of(result).get(name)) if result is not None else None


def cache_on_meta(cache: Any) -> Any:
    """Return a copy of a cache with every tensor on meta."""
    import torch

    return copied(cache, {i: torch.empty_like(t, device="meta") for i, t in own_tensors(cache).items()})


def copied(cache: Any, tensors: Mapping[int, torch.Tensor] | None = None) -> Any:
    """Return a copy of a cache, with replacements for the tensors with these ids."""
    return copy.deepcopy(cache, dict(tensors or {}))


def own_tensors(cache: Any) -> dict[int, torch.Tensor]:
    """Return the tensors of a cache by ``id``, as a memo that makes ``deepcopy`` share them."""
    return {id(leaf): leaf for _, leaf in leaves(cache) if not isinstance(leaf, int)}


def held_places(cache: Any) -> list[torch.Tensor]:
    """Return the integer tensors of a cache, such as positions, which are not counted in cache bytes."""
    return [t for t in own_tensors(cache).values() if t.dim() and not t.is_floating_point()]


def grows_evenly(before: Any, after: Any, steps: int) -> bool:
    """Return whether all sizes and integers in a cache are equal or ``steps`` larger after ``steps`` more tokens."""
    one, other = ([*states(cache), *held_places(cache)] for cache in (before, after))
    numbers = dict(_numbers(after))
    if [t.dim() for t in one] != [t.dim() for t in other] or dict(_numbers(before)).keys() != numbers.keys():
        return False
    pairs = [p for a, b in zip(one, other, strict=True) for p in zip(a.shape, b.shape, strict=True)]
    return all(b - a in (0, steps) for a, b in (*pairs, *((n, numbers[path]) for path, n in _numbers(before))))


def _sizes(
    name: str, given: list[torch.Tensor], later: list[torch.Tensor], more: list[torch.Tensor], context: int
) -> Iterator[SymbolicSize]:
    """Return the dimensions that scale with the batch, and those that grow with the context."""
    for i, (tensor, after, beside) in enumerate(zip(given, later, more, strict=True)):
        for dim, size in enumerate(tensor.shape):
            if after.shape[dim] != size:
                yield SymbolicSize((name, i), dim, "P" if size == context else f"P + {size - context}")
            elif beside.shape[dim] != size:
                yield SymbolicSize((name, i), dim, "B")


def put(cache: Any, path: Path, value: Any) -> None:
    """Replace the contents of a tensor or attribute at an access path in a cache."""
    for kind, key in path[:-1]:
        cache = getattr(cache, key) if kind == "attribute" else cache[key]
    kind, key = path[-1]
    if kind == "attribute":
        setattr(cache, key, value)
    else:
        cache[key] = value


def _numbers(cache: Any) -> list[tuple[Path, int]]:
    return [(path, leaf) for path, leaf in leaves(cache) if isinstance(leaf, int) and not isinstance(leaf, bool)]


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """Shapes of the keys and values in one layer of a model's own cache, and the layer's window."""

    keys: tuple[int, int]
    """Number of key heads, and the width of each."""
    values: tuple[int, int]
    window: int | None = None
    """Length of the sliding window, of which the layer caches one position less; ``None`` for full attention."""
    chunked: bool = False
    """Whether the window is a chunk: tokens attend within chunks, whose borders are multiples of its length."""

    def grows(self, context: int) -> bool:
        """Return whether the layer grows with each token."""
        return self.window is None or context < self.window - 1

    def held(self, context: int) -> int:
        """Return how many positions the layer caches after ``context`` tokens."""
        return context if self.window is None else min(context, self.window - 1)


@dataclass(frozen=True, slots=True)
class OwnCache(Decoder):
    """Decoder with a key/value cache per layer, whose shapes a first run has shown."""

    layers: tuple[CacheLayer, ...] = ()
    owners: tuple[str, ...] = ()
    """Path of the module that writes each layer."""
    towers: frozenset[str] = frozenset()
    """Modules that do not run on token ids alone: towers and projectors."""

    def attention_paths(self, model: nn.Module) -> tuple[str, ...]:
        """Return the path of the module that owns the cache of each layer."""
        return self.owners

    @property
    def chunk(self) -> int:
        """Return the number of positions of a chunk within which layers attend; 0 without chunks."""
        return max((layer.window or 0 for layer in self.layers if layer.chunked), default=0)

    def cache_behind(self, model: nn.Module, past: Past, context: int) -> Any:
        """Return a cache that contains the keys and values ``past`` of ``context`` tokens.

        A mask of a window compares positions with each other, so a cut cache may count from its first token on. Chunks
        begin at fixed positions: their layers get the number of all tokens before.
        """
        cache = self.filled_cache(model, past)
        for layer, own in zip(cache.layers, self.layers, strict=True):
            if own.chunked:
                layer.cumulative_length = context
        return cache

    def _as_left(self, model: nn.Module, cache: Any, context: int) -> Iterator[Recount]:
        """Yield checks that a rebuilt cache of chunked attention equals the one that a prefill leaves.

        Position and number of elements of each such layer are compared.
        """
        left = prefilled(model, "past_key_values", 1, context) if self.chunk and context else None
        for i, (own, there) in enumerate(zip(cache.layers, attribute(left, "layers", ()), strict=False)):
            if self.layers[i].chunked:
                held = attribute(own, "cumulative_length"), attribute(there, "cumulative_length")
                yield Recount("decode", f"cache of layer {i}", "tokens before the step", *held)
                both = own.keys[0].numel() + own.values[0].numel(), there.keys.numel() + there.values.numel()
                yield Recount("decode", f"cache of layer {i}", "elements of a sequence", *both)

    def past(self, model: nn.Module, workload: Workload, batch: int, context: int) -> Past:
        """Return cached keys and values of ``context`` tokens, on meta."""

        def made(heads: int, width: int, layer: CacheLayer) -> torch.Tensor:
            return on_meta(workload, batch, heads, layer.held(context), width)

        return [(made(*layer.keys, layer), made(*layer.values, layer)) for layer in self.layers]

    def problems(self, workload: Workload) -> list[BadInput]:
        """Return an error if decode steps cross the length of a sliding window: their sum then has no closed form."""
        first, steps = workload.context, workload.new_tokens
        windows = {layer.window for layer in self.layers if layer.window is not None}
        return [
            BadInput(
                "decode steps cross the end of a sliding window, so they have no sum in closed form",
                where="--seq-len, --new-tokens",
                expected=f"at most {window - 1} tokens in the prompt and the steps, or a longer prompt",
                got=f"{first} + {steps} = {first + steps}",
            )
            for window in sorted(windows)
            if first < window - 1 < first + steps
        ]

    def step_job(self, model: nn.Module, workload: Workload) -> ExportJob:
        """Return the export job of one decode step at the workload's sizes, with symbolic context."""
        from costproof.models.generic.export_wrappers import CacheStep

        # An export takes a context of one token for a constant; that the first step is as the others, its run shows.
        context = max(2, workload.context)
        past = self.past(model, workload, workload.batch, context)
        args: dict[str, Any] = {
            "input_ids": ids_on_meta(workload.batch, 1),
            "keys": [keys for keys, _ in past],
            "values": [values for _, values in past],
        }
        sizes = [SymbolicSize(("input_ids",), 0, "B")]
        if self.chunk:
            args["positions"] = ids_on_meta(context, 0)
            sizes.append(SymbolicSize(("positions",), 0, "P"))
        for name in ("keys", "values"):
            for i, layer in enumerate(self.layers):
                sizes.append(SymbolicSize((name, i), 0, "B"))
                if layer.grows(context):
                    sizes.append(SymbolicSize((name, i), 2, "P"))
        step = CacheStep(model, self)
        windows = sorted({layer.window for layer in self.layers if layer.window is not None})
        holds = tuple(f"P - {w - 1}" if context >= w - 1 else f"{w - 2} - P" for w in windows)
        return ExportJob(
            "step", "decode", ("steps",), step, {"part": ""}, args, sizes, returns_cache=True, repeated=True,
            chunk=self.chunk, holds=holds if any(s.symbol == "P" for s in sizes) else (),
        )  # fmt: skip

    def step_run(self, model: nn.Module, workload: Workload, context: int) -> Run:
        """Return the run of one decode step after ``context`` tokens."""
        kwargs, before = self._call(model, workload, 1, context)
        return Run(f"step@{context}", model, kwargs, self.places[1], context, before, elsewhere=True)

    def _call(self, model: nn.Module, workload: Workload, tokens: int, context: int) -> tuple[dict[str, Any], Past]:
        """Return the arguments of a call on new tokens after ``context`` cached ones, and the cache's contents."""
        cache = self.cache_behind(model, self.past(model, workload, workload.batch, context), context)
        check_recounts(self._as_left(model, cache, context))
        before = [(keys, values) for keys, values in self.cache_tensors(cache)]
        return {"input_ids": ids_on_meta(workload.batch, tokens), "past_key_values": cache, "use_cache": True}, before

    def chunk_job(self, model: nn.Module, workload: Workload) -> ExportJob:
        """Return the export job of a prefill at the workload's sizes, with the workload's past in the cache.

        The past is a symbol unless the exporter would take it for a constant or for the length of the prompt.
        """
        from costproof.models.generic.export_wrappers import CacheStep

        length, context = workload.text_tokens, workload.past
        past = self.past(model, workload, workload.batch, context)
        args: dict[str, Any] = {
            "input_ids": ids_on_meta(workload.batch, length),
            "keys": [keys for keys, _ in past],
            "values": [values for _, values in past],
        }
        sizes = [SymbolicSize(("input_ids",), 0, "B"), SymbolicSize(("input_ids",), 1, "S")]
        if self.chunk:
            args["positions"] = ids_on_meta(context, 0)
            if context != length:
                sizes.append(SymbolicSize(("positions",), 0, "C"))
        for name in ("keys", "values"):
            for i, layer in enumerate(self.layers):
                sizes.append(SymbolicSize((name, i), 0, "B"))
                if layer.grows(context) and context != length:
                    sizes.append(SymbolicSize((name, i), 2, "C"))
        return ExportJob(
            "prefill", "prefill", ("prompt",), CacheStep(model, self), {"part": ""}, args, sizes, returns_cache=True
        )

    def chunk_run(self, model: nn.Module, workload: Workload) -> Run:
        """Return the run of a prefill with the workload's past in the cache."""
        kwargs, before = self._call(model, workload, workload.text_tokens, workload.past)
        return Run("prompt", model, kwargs, self.places[0], cache_before=before, elsewhere=True)


def own_cache(model: nn.Module) -> OwnCache | HeldCache | str | None:
    """Return the cache of a model, or the reason why decode steps with it are not supported.

    A cache of keys and values per layer can be filled at any length; caches of other kinds are built by the model.
    """
    from costproof.snapshots.copies import short_run

    config = config_of(model) if has_attribute(model, "config") else None
    if config is None or attribute(config, "is_encoder_decoder", False) or not has_attribute(model, "generate"):
        return None
    if not attribute(model, "can_generate", lambda: True)():
        return None
    reached: set[str] = set()
    hooks = [module.register_forward_hook(_noting(reached, path)) for path, module in model.named_modules()]
    try:
        result = short_run(model, {"input_ids": ids_on_meta(2, 3), "use_cache": True})
    finally:
        for hook in hooks:
            hook.remove()
    kinds, chunk = (attribute(text_config(model), name, None) for name in ("layer_types", _CHUNK))
    layers = [
        _layer(layer, chunked=chunk is not None and (kinds is None or kinds[i : i + 1] == ["chunked_attention"]))
        for i, layer in enumerate(attribute(attribute(result, "past_key_values", None), "layers", ()))
    ]
    decoder = decoder_path(model)
    owners = _owners(model, decoder)
    towers = frozenset(p for p, _ in model.named_modules() if p not in reached and not _inside(p, decoder))
    found = tuple(layer for layer in layers if layer is not None)
    if not layers or len(found) != len(layers) or len(owners) != len(layers):
        found_out = held_cache(model, result, towers)
        return (
            found_out if isinstance(found_out, HeldCache) or attribute(text_config(model), "use_cache", False) else None
        )
    return OwnCache(layers=found, owners=owners, towers=towers)


def _noting(reached: set[str], path: str) -> Callable[..., None]:
    return lambda module, args, result: reached.add(path)


def _inside(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _layer(layer: Any, *, chunked: bool) -> CacheLayer | None:
    """Return the key and value shapes in a cache layer, or ``None`` if it holds other tensors too."""
    tensors = {k: v for k, v in vars(layer).items() if has_attribute(v, "new_empty") and v.dim() > 1}
    states = [t for v in vars(layer).values() if isinstance(v, dict) for t in v.values() if t is not None]
    held = any(has_attribute(t, "new_empty") for t in states)
    if held or set(tensors) != {"keys", "values"} or any(t.dim() != 4 or t.shape[2] != 3 for t in tensors.values()):
        return None
    window = attribute(layer, "sliding_window", None) if attribute(layer, "is_sliding", False) else None
    keys, values = tensors["keys"].shape, tensors["values"].shape
    return CacheLayer(
        (int(keys[1]), int(keys[3])), (int(values[1]), int(values[3])), window, chunked and window is not None
    )


def _owners(model: nn.Module, decoder: str) -> tuple[str, ...]:
    """Return the path of each layer's attention: the innermost decoder module with the layer's ``layer_idx``."""
    found: dict[int, str] = {}
    for path, module in model.named_modules():
        index = attribute(module, "layer_idx", None)
        if isinstance(index, int) and _inside(path, decoder) and (index not in found or path.startswith(found[index])):
            found[index] = path
    return tuple(found[i] for i in sorted(found)) if sorted(found) == list(range(len(found))) else ()
