"""Divide a module into stages: prefill and decode if it has a cache, otherwise one forward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from costproof.algebra.series import CACHED
from costproof.ledger.attributes import attribute, has_attribute
from costproof.ledger.errors import BadInput
from costproof.ledger.workload import FLOAT_BYTES, Invocation, TensorSpec, Workload
from costproof.models.decoding.config import longest_context
from costproof.models.decoding.decoder import Locate, text_config
from costproof.models.decoding.exports import contexts
from costproof.models.decoding.names import STAGES
from costproof.models.encoding import STAGE, place
from costproof.models.generic.caches import HeldCache, OwnCache, caches_of
from costproof.models.generic.inputs import Inputs
from costproof.models.generic.towers import IDS, NONE, Towers
from costproof.models.specs import ExportJob, Run, SymbolicSize
from costproof.snapshots.copies import once, own_inputs

if TYPE_CHECKING:
    from torch import nn


class StagePlan(Protocol):
    """Protocol of the division of a module into stages, for one workload."""

    def invocations(self) -> tuple[Invocation, ...]:
        """Return the calls, with the values of their symbols."""

    def export_jobs(self, model: nn.Module) -> tuple[ExportJob, ...]:
        """Return the export jobs at the workload's sizes, so that the branches taken there are counted."""

    def runs(self, model: nn.Module) -> tuple[Run, ...]:
        """Return the runs to trace."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Stage plan with a single stage and a single call."""

    inputs: Inputs
    towers: Towers = NONE

    def invocations(self) -> tuple[Invocation, ...]:
        """Return one call with the sizes of its inputs, and the calls of towers, which are separate stages."""
        given = specs(self.inputs.args.values())
        return tuple(Invocation(s, STAGE, 1, self.inputs.values, given) for s in (*self.towers.names, STAGE))

    def export_jobs(self, model: nn.Module) -> tuple[ExportJob, ...]:
        """Return one export job of the whole module."""
        from costproof.models.generic.export_wrappers import around

        every = {k: v for k, v in self.inputs.args.items() if _is_tensor(v)}
        rest = {k: v for k, v in self.inputs.args.items() if k not in every}
        # A tensor that is given twice is one input: a forward may ask whether its arguments are the same.
        tensors, again = once(every)
        cached = returns_cache(model, self.inputs.args)
        # An export fills a cache that it is given.
        module = around(model, tuple(tensors), own_inputs(rest), again, cached=cached)
        own = (s for s in self.inputs.sizes if s.argument[0] in tensors and s.argument[0] not in again)
        sizes = free(own, tensors)
        whole = ExportJob(STAGE, STAGE, (STAGE,), module, {"part": ""}, tensors, sizes, returns_cache=cached)
        return (replace(whole, parts=self.towers.stages),)

    def runs(self, model: nn.Module) -> tuple[Run, ...]:
        """Return one forward."""
        return (Run(STAGE, model, dict(self.inputs.args), self.towers.around(place), elsewhere=True),)


def _is_tensor(value: Any) -> bool:
    """Return whether an argument consists only of tensors, as export inputs must."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_tensor, value))
    return has_attribute(value, "new_empty")


def specs(values: Iterable[Any]) -> tuple[TensorSpec, ...]:
    """Return the shapes and dtypes of the tensors among some arguments."""
    tensors = [v for v in values if has_attribute(v, "new_empty")]
    return tuple(TensorSpec(tuple(map(int, v.shape)), str(v.dtype).removeprefix("torch.")) for v in tensors)


def free(sizes: Iterable[SymbolicSize], args: Mapping[str, Any]) -> tuple[SymbolicSize, ...]:
    """Return the sizes above 1, which an export can keep symbolic; a size of 1 is specialised."""
    found = []
    for size in sizes:
        value: Any = args
        for key in size.argument:
            value = value[key]
        if value.shape[size.dim] > 1:
            found.append(size)
    return tuple(found)


def returns_cache(model: nn.Module, args: Mapping[str, Any]) -> bool:
    """Return whether a call on meta returns a cache, or fills a cache among its arguments."""
    from costproof.models.generic.export_wrappers import cache_tensors
    from costproof.snapshots import copies

    if caches_of(args):
        return True
    config = attribute(model, "config", None)
    own = text_config(model) if has_attribute(config, "get_text_config") else None
    parts = [attribute(config, name, None) for name in attribute(config, "sub_configs", ())]
    if config is not None and not any(has_attribute(c, "use_cache") for c in (config, own, *parts)):
        return False
    # A module of one's own is not run with numbers for that.
    run = copies.short_run if config is not None else copies.runs_on_meta
    return bool(cache_tensors(run(copies.on_meta(model).eval(), copies.inputs_on_meta(args))))


@dataclass(frozen=True, slots=True)
class Cached:
    """Stage plan of a decoder with a cache: prefill, then decode steps."""

    workload: Workload
    decoder: OwnCache | HeldCache
    prompt: Inputs
    """Token ids and other inputs of the prefill."""
    towers: Towers = NONE

    def problems(self) -> list[BadInput]:
        """Return an error for an empty prompt, and for decode steps that cross the length of a window."""
        if (first := self.workload.text_tokens) < 1:
            return [BadInput("the prompt is empty", where="--seq-len", expected="at least 1", got=first)]
        if self.workload.past and (found := self._without_past()):
            return [found]
        return self.decoder.problems(self.workload) if self.workload.new_tokens else []

    def _without_past(self) -> BadInput | None:
        """Return the reason why a prefill with a filled cache cannot be counted, or ``None``."""
        if isinstance(self.decoder, HeldCache):
            return BadInput(
                "a prompt after a filled cache (--past) is counted only for a cache of keys and values", where="--past",
                expected="no past", got=f"a cache in {self.decoder.name} that the model fills itself",
                fix="leave --past out, or count the whole prompt: --seq-len with the past in it",
            )  # fmt: skip
        others = sorted(self.prompt.args.keys() - {IDS})
        if not others:
            return None
        return BadInput(
            "--past is counted only for prompts of text alone", where="--past", expected=f"no input but {IDS}",
            got=", ".join(others), fix="--image-size 0 for text only, or leave --past out",
        )  # fmt: skip

    def invocations(self) -> tuple[Invocation, ...]:
        """Return the calls of prefill and decode, with the values of their symbols."""
        run = self.workload
        common = {"B": run.batch, "b": FLOAT_BYTES[run.dtype]}
        prompt = specs(self.prompt.args.values())
        values = {**common, "P": run.context, "N": run.new_tokens}
        first = {**common, **self.prompt.values, **({CACHED.name: run.past} if run.past else {})}
        steps = Invocation("decode", "steps", run.new_tokens, values, (TensorSpec((run.batch, 1), "int64"),))
        return (
            *(Invocation(stage, "prompt", 1, first, prompt) for stage in (*self.towers.names, "prefill")),
            *((steps,) if run.new_tokens else ()),
        )

    def export_jobs(self, model: nn.Module) -> tuple[ExportJob, ...]:
        """Return the export jobs of the prefill and, if there are decode steps, of one step, with symbolic sizes."""
        from costproof.models.generic.export_wrappers import around

        decoder = self.decoder
        given = {**self.prompt.args, "use_cache": True}
        tensors = {k: v for k, v in given.items() if _is_tensor(v)}
        prefill = around(model, tuple(tensors), {k: v for k, v in given.items() if k not in tensors}, cached=True)
        sizes = free(self.prompt.sizes, tensors)
        first = ExportJob("prefill", "prefill", ("prompt",), prefill, {"part": ""}, tensors, sizes, returns_cache=True)
        if self.workload.past and isinstance(decoder, OwnCache):
            first = decoder.chunk_job(model, self.workload)
            first = replace(first, sizes=free(first.sizes, first.args))
        first = replace(first, parts=self.towers.stages)
        if not self.workload.new_tokens:
            return (first,)
        step = decoder.step_job(model, self.workload)
        return first, replace(step, sizes=free(step.sizes, step.args))

    def runs(self, model: nn.Module) -> tuple[Run, ...]:
        """Return the runs of the prefill and of sampled decode steps."""
        run, decoder = self.workload, self.decoder
        prompt = {**self.prompt.args, "use_cache": True}
        found = [Run("prompt", model, prompt, self.towers.around(decoder.places[0]), elsewhere=True)]
        if run.past and isinstance(decoder, OwnCache):
            found = [decoder.chunk_run(model, run)]
        found += (decoder.step_run(model, run, context) for context in contexts(run, run.context, decoder.chunk))
        return tuple(replace(r, attention_paths=decoder.owners) for r in found)


@dataclass(frozen=True, slots=True)
class EachRow:
    """Stage plan of a batch of unequal rows: one forward per row, whose equal sequences form its batch.

    Together they stand for one packed call, which reads weights once; exports have the sizes of the rows.
    """

    rows: tuple[Cached, ...]

    def invocations(self) -> tuple[Invocation, ...]:
        """Return one call for each row."""
        calls = (call for row in self.rows for call in row.invocations())
        return tuple(replace(call, id=f"row{i}") for i, call in enumerate(calls, 1))

    def export_jobs(self, model: nn.Module) -> tuple[ExportJob, ...]:
        """Return one export job for each row."""
        jobs = (job for row in self.rows for job in row.export_jobs(model))
        return tuple(
            replace(job, id=f"row{i}", invocations=(f"row{i}",), sizes=(), packed=True) for i, job in enumerate(jobs, 1)
        )

    def runs(self, model: nn.Module) -> tuple[Run, ...]:
        """Return one forward for each row."""
        runs = (run for row in self.rows for run in row.runs(model))
        return tuple(
            replace(run, id=f"row{i}", locate=_in_row(f"row{i}"), packed=True) for i, run in enumerate(runs, 1)
        )


def _in_row(row: str) -> Locate:
    return lambda path, call: (STAGES[0], row)


def longest(model: nn.Module) -> int | None:
    """Return the maximum number of positions that the configuration states, or ``None``."""
    config = attribute(model, "config", None)
    text = text_config(model) if has_attribute(config, "get_text_config") else config
    most = attribute(text, "max_position_embeddings", None)
    if not isinstance(most, int) or most <= 0:
        return None
    scaling = attribute(text, "rope_parameters", None)
    nested = [s for s in scaling.values() if isinstance(s, dict)] if isinstance(scaling, dict) else []
    return longest_context(most, nested or [scaling])
