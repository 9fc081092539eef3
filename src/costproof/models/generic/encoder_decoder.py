"""Divide an encoder-decoder into stages: encode, prefill of one token, and decode steps with both caches."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import attribute, has_attribute
from costproof.ledger.workload import FLOAT_BYTES, Invocation, TensorSpec, Workload
from costproof.models.decoding.decoder import Past, ids_on_meta, in_step, on_meta
from costproof.models.decoding.exports import contexts
from costproof.models.generic.inputs import Inputs
from costproof.models.generic.stages import free, specs
from costproof.models.specs import ExportJob, Run, SymbolicSize
from costproof.snapshots.copies import short_run

if TYPE_CHECKING:
    import torch
    from torch import nn

TWO_STAGES: Final = ("encode", "prefill", "decode")
POOLED: Final = "pooler_output"
"""Output that some encoders return in addition to the last hidden state, and that their decoders read instead."""
PROMPT: Final = 1
"""Number of tokens with which a decoder starts."""
_CALLS: Final = {"encode": "input", "prefill": "prompt", "decode": "steps"}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FirstRun:
    """Facts that one run of an encoder-decoder on meta shows: encoder path, shapes of its result and of the caches."""

    encoder: str
    """Path of the encoder."""
    shared: frozenset[str]
    """Modules that run in the encoder but whose path is outside of it, such as a shared embedding."""
    lenders: frozenset[str]
    """Modules outside of the encoder that own parameters of the encoder: tied embeddings."""
    hidden: Mapping[str, Shape]
    """Shapes of the encoder's outputs by name: ``last_hidden_state`` [B, positions, width], and ``pooler_output`` if
    the decoder reads it."""
    own: tuple[tuple[Shape, Shape], ...]
    """Self-attention cache shapes of keys and values, [B, heads, 1, width], of each layer."""
    cross: tuple[tuple[Shape, Shape], ...]
    """Cross-attention cache shapes of keys and values, [B, heads, positions, width], of each layer."""

    def located(self, path: str, call: int) -> tuple[str, str]:
        """Return the stage and invocation of a module call in the run of the encoder and the first decoder token."""
        inside = path == self.encoder or path.startswith(f"{self.encoder}.") or (path in self.shared and call == 1)
        stage = "encode" if inside else "prefill"
        return stage, _CALLS[stage]

    def stages_of(self, path: str) -> tuple[str, ...]:
        """Return the stages that use a module."""
        if path in self.shared | self.lenders:
            return TWO_STAGES
        return TWO_STAGES[:1] if self.located(path, 1)[0] == "encode" else TWO_STAGES[1:]


def first_run(model: nn.Module, inputs: Mapping[str, Any]) -> FirstRun | None:
    """Run a model once on meta, and return its :class:`FirstRun` if it is an encoder-decoder with a key/value cache."""
    two = attribute(attribute(model, "config", None), "is_encoder_decoder", False) and has_attribute(model, "generate")
    if not two or not inputs:
        return None
    batch = next(iter(inputs.values())).shape[0]
    result = short_run(model, {**inputs, "decoder_input_ids": ids_on_meta(batch, PROMPT), "use_cache": True})
    try:
        encoder, cache = model.get_encoder(), result.past_key_values  # type: ignore[operator]
        own, cross = (_shapes(getattr(cache, f"{half}_attention_cache").layers) for half in ("self", "cross"))
        hidden = {"last_hidden_state": tuple(map(int, result.encoder_last_hidden_state.shape))}
        pooled = attribute(short_run(encoder, inputs), POOLED, None)
    except AttributeError:  # it has no such parts, or did not run
        return None
    paths = {id(module): path for path, module in model.named_modules()}
    if id(encoder) not in paths or not own or len(own) != len(cross):
        return None
    takes = inspect.signature(encoder.forward).parameters
    if any(
        v.is_floating_point() for n, v in inputs.items() if n not in takes and has_attribute(v, "is_floating_point")
    ):
        return None  # an image or a sound that it does not take goes through a tower, whose work would be in no stage
    path = paths[id(encoder)]
    inside = {paths[id(module)] for module in encoder.modules()}
    shared = frozenset(p for p in inside if p != path and not p.startswith(f"{path}."))
    owners = {id(p): name.rpartition(".")[0] for name, p in model.named_parameters()}
    lenders = frozenset(owners[id(p)] for p in encoder.parameters()) - inside
    if pooled is not None and _cross_without(model, result.encoder_last_hidden_state, batch) != cross:
        hidden[POOLED] = tuple(map(int, pooled.shape))
    return FirstRun(path, shared, lenders, hidden, own, cross)


def _cross_without(model: nn.Module, hidden: torch.Tensor, batch: int) -> tuple[tuple[Shape, Shape], ...] | None:
    """Return the cross-attention cache shapes of a decoder that gets only the encoder's last hidden state."""
    from costproof.models.generic.export_wrappers import Handed

    given = {"encoder_outputs": Handed(hidden), "decoder_input_ids": ids_on_meta(batch, PROMPT), "use_cache": True}
    cache = attribute(short_run(model, given), "past_key_values", None)
    layers = attribute(attribute(cache, "cross_attention_cache", None), "layers", ())
    return _shapes(layers) if all(layer.is_initialized for layer in layers) else None


def _shapes(layers: Iterable[Any]) -> tuple[tuple[Shape, Shape], ...]:
    return tuple((tuple(map(int, x.keys.shape)), tuple(map(int, x.values.shape))) for x in layers)


def two_stack_calls(run: Workload, sizes: Mapping[str, int], inputs: tuple[TensorSpec, ...]) -> tuple[Invocation, ...]:
    """Return the calls of encoder and decoder, with the values of their symbols, without creating tensors.

    Args:
        sizes: values of the symbols of the encoder's inputs.
        inputs: shapes of the encoder's inputs.
    """
    common = {**sizes, "B": run.batch, "b": FLOAT_BYTES[run.dtype]}
    ids = (TensorSpec((run.batch, PROMPT), "int64"),)
    steps = {**common, "P": PROMPT, "N": run.new_tokens}
    calls = (
        Invocation("encode", "input", 1, common, inputs),
        Invocation("prefill", "prompt", 1, common, ids),
        Invocation("decode", "steps", run.new_tokens, steps, ids),
    )
    return calls if run.new_tokens else calls[:-1]


@dataclass(frozen=True, slots=True)
class TwoStacks:
    """Plan of an encoder-decoder: encode, prefill, decode."""

    workload: Workload
    inputs: Inputs
    """Inputs of the encoder."""
    first: FirstRun

    def invocations(self) -> tuple[Invocation, ...]:
        """Return the stage calls.

        Symbols are S for encoder positions, if the user can choose them, and P for cached tokens.
        """
        return two_stack_calls(self.workload, self.inputs.values, specs(self.inputs.args.values()))

    def export_jobs(self, model: nn.Module) -> tuple[ExportJob, ...]:
        """Return the export jobs of the encoder, of the first decoder token, and of a decode step if there is one."""
        from costproof.models.generic.export_wrappers import CrossStep, FirstToken, encode

        batch, part = self.workload.batch, {"part": ""}
        names, hidden = tuple(self.first.hidden), list(self._handed().values())
        args: dict[str, Any] = {"hidden": hidden, "decoder_input_ids": ids_on_meta(batch, PROMPT)}
        sizes = [SymbolicSize(("decoder_input_ids",), 0, "B")]
        for i, tensor in enumerate(hidden):
            sizes.append(SymbolicSize(("hidden", i), 0, "B"))
            positions = tensor.dim() == 3 and self._long(tensor.shape[1])  # a pooled one may have none
            sizes += [SymbolicSize(("hidden", i), 1, "S")] if positions else []
        long = self._long(self.first.cross[0][0][2])
        # An export takes a context of one token for a constant; that the first step is as the others, its run shows.
        past = self._past(self.first.own, 2)
        cross = self._past(self.first.cross)
        step = {
            **args,
            "keys": [k for k, _ in past], "values": [v for _, v in past],
            "cross_keys": [k for k, _ in cross], "cross_values": [v for _, v in cross],
        }  # fmt: skip
        more = list(sizes)
        for name in ("keys", "values", "cross_keys", "cross_values"):
            for i in range(len(past)):
                more.append(SymbolicSize((name, i), 0, "B"))
                length = "S" if name.startswith("cross_") else "P"
                more += [SymbolicSize((name, i), 2, length)] if length == "P" or long else []
        given = dict(self.inputs.args)
        encoder = encode(model, tuple(given), len(names))
        jobs = (
            ExportJob("encode", "encode", ("input",), encoder, part, given, free(self.inputs.sizes, given)),
            ExportJob(
                "prefill",
                "prefill",
                ("prompt",),
                FirstToken(model, names),
                part,
                args,
                free(sizes, args),
                returns_cache=True,
            ),
            ExportJob(
                "step",
                "decode",
                ("steps",),
                CrossStep(model, names),
                part,
                step,
                free(more, step),
                returns_cache=True,
                repeated=True,
            ),
        )
        return jobs if self.workload.new_tokens else jobs[:-1]

    def runs(self, model: nn.Module) -> tuple[Run, ...]:
        """Return the run of the encoder with the first token, and those of the first, middle and last steps."""
        from costproof.models.generic.export_wrappers import Handed, two_caches

        batch = self.workload.batch
        prompt = {**self.inputs.args, "decoder_input_ids": ids_on_meta(batch, PROMPT), "use_cache": True}
        found = [Run("prompt", model, prompt, self.first.located, elsewhere=True)]
        for context in contexts(self.workload, PROMPT):
            kwargs = {
                "encoder_outputs": Handed(**self._handed()),
                "decoder_input_ids": ids_on_meta(batch, 1),
                "past_key_values": two_caches(self._past(self.first.own, context), self._past(self.first.cross)),
                "use_cache": True,
            }
            found.append(Run(f"step@{context}", model, kwargs, in_step, context, elsewhere=True))
        return tuple(found)

    def _long(self, positions: int) -> bool:
        """Return whether the encoder returns one output per input, and the input length S is a setting."""
        return self.inputs.values.get("S") == positions

    def _handed(self) -> dict[str, torch.Tensor]:
        return {name: self._empty(shape) for name, shape in self.first.hidden.items()}

    def _past(self, layers: tuple[tuple[Shape, Shape], ...], context: int | None = None) -> Past:
        return [(self._empty(keys, context), self._empty(values, context)) for keys, values in layers]

    def _empty(self, shape: Shape, context: int | None = None) -> torch.Tensor:
        made = shape if context is None else (*shape[:2], context, *shape[3:])
        return on_meta(self.workload, *made)


def of_encoder(inputs: Inputs) -> Inputs:
    """Return the inputs without the arguments of the decoder (``decoder_…``)."""
    kept = {name: value for name, value in inputs.args.items() if not name.startswith("decoder_")}
    return replace(inputs, args=kept, sizes=tuple(s for s in inputs.sizes if s.argument[0] in kept))
