"""The stages of a module: prefill and decode where it has a cache of keys and values, else one forward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from costproof.ledger.errors import BadInput
from costproof.ledger.workload import FLOAT_BYTES, Invocation, TensorSpec, Workload
from costproof.models.decoding.decoder import Decoder, Past, config_of, ids_on_meta, on_meta, text_config
from costproof.models.decoding.exports import contexts
from costproof.models.encoding.names import STAGE, place
from costproof.models.generic.inputs import Inputs
from costproof.models.target import ExportJob, Run, SymbolicSize

if TYPE_CHECKING:
    import torch
    from torch import nn


class Plan(Protocol):
    """How a module is cut into stages, at one workload."""

    def invocations(self) -> tuple[Invocation, ...]:
        """The calls, with the values of their symbols."""
        ...

    def export_jobs(self, model: nn.Module) -> tuple[ExportJob, ...]:
        """The exports, at the sizes of the workload: whatever way the model takes there is the one that is counted."""
        ...

    def runs(self, model: nn.Module) -> tuple[Run, ...]:
        """What is run."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """One stage, one call."""

    inputs: Inputs

    def invocations(self) -> tuple[Invocation, ...]:
        """One call, with the sizes of its inputs."""
        return (Invocation(STAGE, STAGE, 1, self.inputs.values, specs(self.inputs.args.values())),)

    def export_jobs(self, model: nn.Module) -> tuple[ExportJob, ...]:
        """One export of the whole."""
        from costproof.models.generic.modules import around

        tensors = {k: v for k, v in self.inputs.args.items() if _is_tensor(v)}
        rest = {k: v for k, v in self.inputs.args.items() if k not in tensors}
        cached = returns_cache(model, self.inputs.args)
        module = around(model, tuple(tensors), rest, cached=cached)
        sizes = free(self.inputs.sizes, tensors)
        return (ExportJob(STAGE, STAGE, (STAGE,), module, {"part": ""}, tensors, sizes, returns_cache=cached),)

    def runs(self, model: nn.Module) -> tuple[Run, ...]:
        """One forward."""
        return (Run(STAGE, model, dict(self.inputs.args), place, elsewhere=True),)


def _is_tensor(value: Any) -> bool:
    """Whether an argument of a forward is tensors: an export has places for those alone."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_tensor, value))
    return hasattr(value, "new_empty")


def specs(values: Iterable[Any]) -> tuple[TensorSpec, ...]:
    """Shapes and dtypes of the tensors among some arguments."""
    tensors = [v for v in values if hasattr(v, "new_empty")]
    return tuple(TensorSpec(tuple(map(int, v.shape)), str(v.dtype).removeprefix("torch.")) for v in tensors)


def free(sizes: Iterable[SymbolicSize], args: Mapping[str, Any]) -> tuple[SymbolicSize, ...]:
    """The sizes that an export at these arguments can keep as symbols: it takes a size of 1 for a constant."""
    found = []
    for size in sizes:
        value: Any = args
        for key in size.argument:
            value = value[key]
        if value.shape[size.dim] > 1:
            found.append(size)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """What one layer of a model's own cache holds."""

    keys: tuple[int, int]
    """Heads, and the width of each."""
    values: tuple[int, int]
    window: int | None = None
    """Positions that a query sees; ``None`` for all. The layer holds one fewer."""

    def grows(self, context: int) -> bool:
        """Whether another token makes the layer longer."""
        return self.window is None or context < self.window - 1

    def held(self, context: int) -> int:
        """Positions of the layer after ``context`` tokens."""
        return context if self.window is None else min(context, self.window - 1)


@dataclass(frozen=True, slots=True)
class OwnCache(Decoder):
    """A decoder whose cache is as its own first run left it."""

    layers: tuple[CacheLayer, ...] = ()
    owners: tuple[str, ...] = ()
    """Path of the module that writes each layer."""

    def attention_paths(self, model: nn.Module) -> tuple[str, ...]:
        """Module path that owns the cache of each layer."""
        return self.owners

    def past(self, model: nn.Module, workload: Workload, batch: int, context: int) -> Past:
        """Keys and values on meta of ``context`` tokens."""

        def made(heads: int, width: int, layer: CacheLayer) -> torch.Tensor:
            return on_meta(workload, batch, heads, layer.held(context), width)

        return [(made(*layer.keys, layer), made(*layer.values, layer)) for layer in self.layers]


def returns_cache(model: nn.Module, args: Mapping[str, Any]) -> bool:
    """Whether a call returns a cache, which a run on meta shows."""
    from costproof.models.generic import copies
    from costproof.models.generic.modules import cache_tensors

    if not hasattr(getattr(model, "config", None), "use_cache"):
        return False
    result = copies.short_run(copies.on_meta(model).eval(), copies.inputs_on_meta(args))
    return bool(cache_tensors(result))


def own_cache(model: nn.Module) -> OwnCache | None:
    """The cache of a model that has one of keys and values per layer; found out by a short run on meta."""
    from costproof.models.generic.copies import short_run

    config = config_of(model) if hasattr(model, "config") else None
    if config is None or getattr(config, "is_encoder_decoder", False) or not hasattr(model, "generate"):
        return None
    if not getattr(model, "can_generate", lambda: True)():
        return None
    result = short_run(model, {"input_ids": ids_on_meta(2, 3), "use_cache": True})
    layers = [_layer(layer) for layer in getattr(getattr(result, "past_key_values", None), "layers", ())]
    owners = _owners(model)
    if not layers or None in layers or len(owners) != len(layers):
        return None
    return OwnCache(layers=tuple(layer for layer in layers if layer is not None), owners=owners)


def _layer(layer: Any) -> CacheLayer | None:
    tensors = {k: v for k, v in vars(layer).items() if hasattr(v, "new_empty") and v.dim() > 1}
    if set(tensors) != {"keys", "values"} or any(t.dim() != 4 or t.shape[2] != 3 for t in tensors.values()):
        return None
    window = getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None
    keys, values = tensors["keys"].shape, tensors["values"].shape
    return CacheLayer((int(keys[1]), int(keys[3])), (int(values[1]), int(values[3])), window)


def _owners(model: nn.Module) -> tuple[str, ...]:
    """The innermost module that knows itself to be layer i, of every i."""
    found: dict[int, str] = {}
    for path, module in model.named_modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and (index not in found or path.startswith(found[index])):
            found[index] = path
    return tuple(found[i] for i in sorted(found)) if sorted(found) == list(range(len(found))) else ()


@dataclass(frozen=True, slots=True)
class Cached:
    """A decoder with a cache of keys and values: the prefill, then steps."""

    workload: Workload
    decoder: OwnCache

    def problems(self) -> list[BadInput]:
        """No prompt, no step, or what keeps the steps from a closed sum: a window that is passed while they run."""
        first, steps = self.workload.text_tokens, self.workload.new_tokens
        few = [
            BadInput("the run is too short", where=option, expected="at least 1", got=value)
            for option, value in (("--seq-len", first), ("--new-tokens", steps))
            if value < 1
        ]
        if not few and steps > 1 and not any(layer.grows(first) for layer in self.decoder.layers):
            few.append(
                BadInput(
                    "behind the end of every sliding window all steps are the same",
                    where="--new-tokens",
                    expected="1",
                    got=steps,
                )
            )
        return few or self._windows(first, steps)

    def _windows(self, first: int, steps: int) -> list[BadInput]:
        windows = {layer.window for layer in self.decoder.layers if layer.window is not None}
        return [
            BadInput(
                "the steps pass the end of a sliding window: they have no sum in closed form",
                where="--seq-len, --new-tokens",
                expected=f"at most {window - 1} tokens in the prompt and the steps, or a longer prompt",
                got=f"{first} + {steps} = {first + steps}",
            )
            for window in sorted(windows)
            if first < window - 1 < first + steps
        ]

    def invocations(self) -> tuple[Invocation, ...]:
        """Prompt and steps, with the symbols that decoders have."""
        run = self.workload
        common = {"B": run.batch, "b": FLOAT_BYTES[run.dtype]}
        prompt = TensorSpec((run.batch, run.text_tokens), "int64")
        values = {**common, "P": run.text_tokens, "N": run.new_tokens}
        return (
            Invocation("prefill", "prompt", 1, {**common, "S": run.text_tokens}, (prompt,)),
            Invocation("decode", "steps", run.new_tokens, values, (TensorSpec((run.batch, 1), "int64"),)),
        )

    def export_jobs(self, model: nn.Module) -> tuple[ExportJob, ...]:
        """Prefill and step, at the workload's sizes, with symbols."""
        from costproof.models.generic.modules import Prefill, Step

        run, decoder = self.workload, self.decoder
        ids = {"input_ids": ids_on_meta(run.batch, run.text_tokens)}
        sizes = (SymbolicSize(("input_ids",), 0, "B"), SymbolicSize(("input_ids",), 1, "S"))
        # An export takes a context of one token for a constant; that the first step is as the others, its run shows.
        context = max(2, run.text_tokens)
        past = decoder.past(model, run, run.batch, context)
        args: dict[str, Any] = {
            "input_ids": ids_on_meta(run.batch, 1),
            "keys": [keys for keys, _ in past],
            "values": [values for _, values in past],
        }
        steps = [SymbolicSize(("input_ids",), 0, "B")]
        for name in ("keys", "values"):
            for i, layer in enumerate(decoder.layers):
                steps.append(SymbolicSize((name, i), 0, "B"))
                if layer.grows(context):
                    steps.append(SymbolicSize((name, i), 2, "P"))
        prefill, step = Prefill(model, decoder), Step(model, decoder)
        part = {"part": ""}
        return (
            ExportJob("prefill", "prefill", ("prompt",), prefill, part, ids, free(sizes, ids), returns_cache=True),
            ExportJob(
                "step", "decode", ("steps",), step, part, args, free(steps, args), returns_cache=True, repeated=True
            ),
        )

    def runs(self, model: nn.Module) -> tuple[Run, ...]:
        """The prefill, then the first, the middle and the last step."""
        run, decoder = self.workload, self.decoder
        prompt = {"input_ids": ids_on_meta(run.batch, run.text_tokens), "use_cache": True}
        found = [Run("prompt", model, prompt, decoder.places[0], elsewhere=True)]
        for context in contexts(run, run.text_tokens):
            cache = decoder.filled_cache(model, decoder.past(model, run, run.batch, context))
            before = [(keys, values) for keys, values in decoder.cache_tensors(cache)]
            kwargs = {"input_ids": ids_on_meta(run.batch, 1), "past_key_values": cache, "use_cache": True}
            found.append(Run(f"step@{context}", model, kwargs, decoder.places[1], context, before, elsewhere=True))
        return tuple(replace(r, attention_paths=decoder.owners) for r in found)


def longest(model: nn.Module) -> int | None:
    """Positions that a model has a place for, as far as its configuration says."""
    config = getattr(model, "config", None)
    text = text_config(model) if hasattr(config, "get_text_config") else config
    return getattr(text, "max_position_embeddings", None)
