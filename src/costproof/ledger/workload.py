"""Describe a workload and a counted model as data, and in the first line of every report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import Any, Final, Literal, cast

from costproof.ledger.errors import BadInput, Incomplete
from costproof.ledger.mesh import CP_PLAN, DISPATCH, EP_BATCHES, PLAN, RANK, Mesh, of_mesh, own_batch
from costproof.ledger.metrics import Metric
from costproof.ledger.plural import plural

Dtype = Literal["bfloat16", "float16", "float32"]
AttentionKind = Literal["sdpa", "eager", "flash_attention_2"]
Logits = Literal["all", "last"]
ExpertKernel = Literal["grouped_mm", "batched_mm", "eager"]
"""Implementation of routed experts; ``eager`` loops over the experts that received tokens.

Which ones is data, so only real runs can trace it.
"""

PAIRS_OF_4_BITS: Final = "float4_e2m1fn_x2"
"""Torch dtype each of whose elements packs two 4-bit numbers."""
FLOAT_BYTES: Final[dict[str, int]] = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, PAIRS_OF_4_BITS: 1,
    "complex32": 4, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes per element of the floating-point dtypes that count as activations, by dtype."""
ITEM_BYTES: Final[dict[str, int]] = {
    **FLOAT_BYTES, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "uint64": 8, "uint32": 4, "uint16": 2,
}  # fmt: skip
"""Bytes per element of every dtype, by dtype."""


ConfigValue = bool | int | float | str | tuple[int | str, ...] | None
"""A value of a configuration key."""
SettingValue = int | str | tuple[int, ...]
"""A value of a setting that a target defines."""
PAST: Final = "past"
"""Workload input with the tokens per sequence in the cache before the prefill, if there are any."""
ATTRIBUTES: Final = "tensors that are attributes, no parameters or buffers, are in no number of bytes of modules: "
"""First words of the note on the memory of tensors that are plain attributes of modules."""
ROWS: Final = "rows"
"""Workload input with the rows of a batch of unequal sequences, as comma-separated :attr:`BatchRow.text`."""
ROWS_INVOCATION: Final = "rows"
"""Id of the prefill invocation that processes the rows of a batch."""


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A set of equal sequences in a batch: a prompt, a chunk after a prefix, a decode step, or drafted tokens."""

    new: int
    """Tokens that each sequence processes."""
    past: int = 0
    """Tokens of each sequence that are already in the cache."""
    count: int = 1
    """Number of equal sequences."""
    logits: int = 1
    """Number of last positions of each sequence that get logits."""

    @property
    def text(self) -> str:
        """Return the stored text of the row: ``16x5+8000/1``, 16 sequences of 5 tokens after 8000, 1 with logits."""
        kept = "" if self.new == self.logits == 1 else f"/{self.logits}"
        return f"{f'{self.count}x' if self.count > 1 else ''}{self.new}{f'+{self.past}' if self.past else ''}{kept}"

    @property
    def short(self) -> str:
        """Return the text of the row, without its logits if only the last position has them."""
        return self.text.removesuffix("/1")


_ROW: Final = re.compile(r"(?:([0-9]+)x)?([0-9]+)(?:\+([0-9]+))?(?:/([0-9]+))?")


@lru_cache(maxsize=64)
def _stored_rows(text: str) -> tuple[BatchRow, ...]:
    found = []
    for part in text.split(","):
        matched = _ROW.fullmatch(part)
        if matched is None:
            raise BadInput("a row of the batch cannot be read", where="$.workload.inputs.rows", got=part[:60])
        count, new, past, logits = matched.groups(default="")
        found.append(BatchRow(int(new), int(past or 0), int(count or 1), int(logits or 1)))
    return tuple(found)


def sequences_in(
    given: Iterable[str | Mapping[str, Any]], names: Sequence[Sequence[str]], *, every: bool
) -> Iterator[tuple[int, int, int, int]]:
    """Parse the text of batch rows a second time, and yield (number, new tokens, past, logits) of valid rows.

    Args:
        given: each row as text, or the columns of a row, or those of a step of a scheduler.
        names: of the columns with these numbers.
        every: whether rows that do not say theirs have logits of all positions, not of the last.
    """
    for one in given:
        if isinstance(one, str):
            head, _, kept = "".join(one.split()).partition("/")
            size, _, context = head.partition("+")
            many, _, new = size.rpartition("x")
            columns: list[Any] = [[many], [new], [context], [kept]]
        else:
            if not any(one.get(name) for name in names[1]):  # a decode step of SGLang
                one = {names[1][0]: [1] * len(one["seq_lens"]), names[2][0]: [n - 1 for n in one["seq_lens"]]}
            found: list[list[Any]] = [[one[n] for n in known if one.get(n) not in (None, "")][:1] for known in names]
            columns, tokens_of, past = [*found], found[1][0], found[2][0] if found[2] else None
            if isinstance(tokens_of, list):
                columns = [(), tokens_of, past if isinstance(past, list) else (), ()]
            elif isinstance(tokens_of, dict):
                before = dict(past) if isinstance(past, dict) else {}
                for request in one.get("scheduled_new_reqs") or ():
                    before[request.get("req_id")] = request.get("num_computed_tokens")
                cached = one.get("scheduled_cached_reqs") or {}
                before.update(zip(cached.get("req_ids", ()), cached.get("num_computed_tokens", ()), strict=False))
                drafts = one.get("scheduled_spec_decode_tokens") or {}
                verified = [1 + len(drafts[name]) if name in drafts else "" for name in tokens_of]
                columns = [(), tokens_of.values(), map(before.get, tokens_of), verified]
        for number, tokens, behind, logits in zip_longest(*columns, fillvalue=""):
            logits = ("all" if every else "last") if logits == "" else logits
            logits = tokens if logits == "all" else 1 if logits == "last" else logits
            yield int(number or 1), int(tokens), int(behind or 0), int(logits)


@dataclass(frozen=True, slots=True)
class Workload:
    """A run to count: a batch of equal prompts, a prefill and decode steps."""

    name: str
    text_tokens: int
    """Text tokens of the prompt, per sequence."""
    new_tokens: int = 1
    """Number of decode steps after the prefill; step i has P + i tokens of context in the cache."""
    batch: int = 1
    """Number of sequences; 1 for a module whose arguments have no common first dimension."""
    dtype: Dtype = "bfloat16"
    attention: AttentionKind = "sdpa"
    logits: Logits = "all"
    """Prefill positions that get logits."""
    experts: ExpertKernel = "grouped_mm"
    inputs: dict[str, SettingValue] = field(default_factory=dict)
    """Settings that the target defines for inputs other than text; only the target reads them."""
    what: str = ""
    """Description of the inputs: ``global view 1024, 2x2 crops of 640``."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Dtype and shape of the first stage's arguments, for a target without formulas: ``float32[2,3,64,64]``.

    Where values decide a size or a branch of the run, the values of tensors follow their shape. The arguments of a
    target with formulas follow from its settings and its configuration.
    """

    @property
    def past(self) -> int:
        """Return the number of tokens per sequence in the cache before the prefill."""
        found = self.inputs.get(PAST, 0)
        return cast(int, found)

    @property
    def rows(self) -> tuple[BatchRow, ...]:
        """Return the rows of a batch of unequal sequences; empty if all sequences are equal."""
        text = self.inputs.get(ROWS, "")
        return _stored_rows(cast(str, text)) if text else ()

    @property
    def padded_sizes(self) -> tuple[int, ...]:
        """Return the sizes to the next of which a call's tokens are padded; empty without padding."""
        text = str(self.inputs.get(PAD_TO, ""))
        return tuple(map(int, text.split(","))) if text else ()

    def of_row(self, row: BatchRow) -> Workload:
        """Return the workload of one batch row as a separate batch."""
        inputs = {name: value for name, value in self.inputs.items() if name != ROWS}
        inputs |= {PAST: row.past} if row.past else {}
        return replace(self, text_tokens=row.new, new_tokens=0, batch=row.count, inputs=inputs)

    @property
    def context(self) -> int:
        """Return the number of tokens per sequence in the cache after a text prefill."""
        return self.past + self.text_tokens

    @property
    def mesh(self) -> Mesh:
        """Return the device mesh of the run; a single device by default."""
        return Mesh.of(self.inputs)

    @property
    def on_one_device(self) -> Workload:
        """Return the workload without the inputs that say how ranks share it."""
        return replace(self, inputs={name: value for name, value in self.inputs.items() if not of_mesh(name)})

    @property
    def rank(self) -> int:
        """Return the rank of the mesh that is counted."""
        found = self.inputs.get(RANK, 0)
        return cast(int, found)

    @property
    def own_batch(self) -> int:
        """Return the number of sequences in the batch that the counted rank runs."""
        return own_batch(self.batch, self.mesh, self.rank)

    @property
    def gathered_batches(self) -> tuple[int, ...]:
        """Return the batch sizes of the ranks whose tokens the counted rank gathers; empty if all are equal.

        Ranks that store parts of parameters have no unequal batches, and those that send each other pairs gather none.
        """
        mesh = self.mesh
        if mesh.batches == 1 or self.batch % mesh.dp == 0 or DISPATCH in self.inputs:
            return ()
        return tuple(own_batch(self.batch, mesh, rank) for rank in mesh.group(EP_BATCHES, self.rank))

    @property
    def own_tokens(self) -> int:
        """Return the number of tokens per prompt that the counted rank processes."""
        return self.text_tokens // self.mesh.cp

    @property
    def sequence_parts(self) -> int:
        """Return the number of equal chunks of a prompt: one per rank that splits it, or two with ``zigzag``."""
        return self.mesh.cp * (1 + (self.mesh.cp > 1 and self.inputs.get(CP_PLAN, "zigzag") == "zigzag"))

    @property
    def keeps_new_tokens(self) -> bool:
        """Return whether the counted rank caches the tokens of decode steps, which only the last along ``cp`` does."""
        return self.mesh.coordinates(self.rank).cp == self.mesh.cp - 1

    @property
    def own(self) -> Workload:
        """Return the workload with only the sequences that the counted rank runs."""
        return replace(self, batch=self.own_batch)

    @property
    def gathered(self) -> Workload:
        """Return the workload of the counted rank without FSDP, as layers run once parameters are gathered.

        Raises:
            Incomplete: ranks send each other pairs of the whole batch.
        """
        mesh, at = self.mesh, self.mesh.coordinates(self.rank)
        if mesh.fsdp == 1:
            return self
        if DISPATCH in self.inputs:
            what = "the live peak is not counted where ranks store parts of parameters and send token-expert pairs"
            raise Incomplete(what, where=f"--fsdp, --{DISPATCH}", got=mesh.text)
        place = (at.pp * mesh.cp + at.cp) * mesh.tp + at.tp
        return self.own.on_mesh(tp=mesh.tp, ep=mesh.ep, pp=mesh.pp, cp=mesh.cp, rank=place)

    def on_mesh(self, *, rank: int = 0, **axes: int) -> Workload:
        """Return the workload on another mesh, with the same parallelism plan."""
        plans = (PLAN, CP_PLAN) if axes.get("cp", 1) > 1 else (PLAN,)
        kept = {name: value for name, value in self.inputs.items() if name in plans or not of_mesh(name)}
        named = {axis: size for axis, size in axes.items() if size > 1} | ({RANK: rank} if rank else {})
        return replace(self, inputs={**kept, **named})


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a stage, or a series of decode steps, with the values of its symbols."""

    stage: str
    id: str
    calls: int
    """Number of times the stage runs: 1, or the number of decode steps."""
    symbols: dict[str, int]
    """Values of the workload's symbols in this invocation."""
    inputs: tuple[TensorSpec, ...]


def describe_calls(invocations: Iterable[Invocation]) -> dict[str, str]:
    """Return a text on each call by stage/invocation: ``3 x int64[1,1] at B 1, P 10`` for ``decode/steps``."""
    return {f"{call.stage}/{call.id}": _call(call) for call in invocations}


def _call(call: Invocation) -> str:
    times = f"{call.calls} x " if call.calls != 1 else ""
    inputs = ", ".join(f"{s.dtype}[{','.join(map(str, s.shape))}]" for s in call.inputs) or "no tensor"
    symbols = ", ".join(f"{name} {value}" for name, value in sorted(call.symbols.items()))
    return f"{times}{inputs}{f' at {symbols}' if symbols else ''}"


@dataclass(frozen=True, slots=True)
class ModuleKind:
    """Class, settings and parameters of all modules with one path pattern."""

    kind: str
    """Name of the module class."""
    settings: dict[str, ConfigValue]
    """Scalar attributes of the module, without the index of a layer in its stack (``layer_idx``)."""
    shapes: dict[str, str]
    """Dtype and shape of the module's own parameters, by name: ``float32[10,64]`` for ``weight``."""
    count: int


UNREAD: Final = "nothing reads it"
KV_BLOCK: Final = "kv_block"
"""Workload input with the tokens per block of the key/value cache, if the cache is paged."""
PAD_TO: Final = "pad_to"
"""Workload input with the sizes to which the tokens of a call are padded, separated by commas."""
KV_DTYPE: Final = "kv_dtype"
"""Workload input with the format of the key/value cache, if other than the run's dtype."""
SIZE_FROM: Final = "image_size_from"
"""Workload input with the key in a processor's configuration that gives the image size."""
FURTHER_TOKENS: Final = "layers that predict further tokens (MTP) are not part of the class"
OWN_CODE: Final = "transformers has the class: the code that it names does not run"
NO_CLASS: Final = "transformers has no such type: that of the architecture is counted"
WHOLE_FILE: Final = "$"
"""Key of ``TargetInfo.waived`` that stands for the whole configuration file."""
NOT_COMPARED: Final = "not compared with the reading of transformers, which is not installed"
STATED_REASONS: Final = {
    UNREAD: "keys that nothing reads",
    FURTHER_TOKENS: "not counted, layers that predict further tokens (MTP)",
    OWN_CODE: "own code not run, transformers has the class",
    NO_CLASS: "counted as the type of its architecture",
}
"""Wording before the waived configuration keys in every report, by reason in ``TargetInfo.waived``."""


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """The counted model: name, configuration, stages, and everything in it that was not counted."""

    name: str
    implementation: str
    """``native`` (transformers' classes) or ``vendor`` (remote code of a snapshot)."""
    config_hash: str
    """First twelve hex digits of the SHA-256 of the normalised configuration."""
    symbols: dict[str, int]
    """Values of the configuration's symbols."""
    stages: tuple[str, ...]
    waived: dict[str, str] = field(default_factory=dict)
    """Reasons why configuration keys were read but deliberately not used, by key."""
    cut: dict[str, str] = field(default_factory=dict)
    """Parts of the model that were reduced on request: ``2 of 12`` by ``decoder layers``."""
    changed: dict[str, str] | None = None
    """Differences from the published configuration by key, ``8, published 6``; ``None`` if unknown."""
    config: dict[str, ConfigValue] | None = None
    """Configuration values that determine a cost, by key, with defaults filled in; ``None`` if unknown."""
    quantised: dict[str, str] = field(default_factory=dict)
    """Format of the parts, ``weights`` or ``cache``, whose stored format is not counted, by part.

    Their bytes are counted as if they were in the dtype of the run.
    """
    dtypes: tuple[str, ...] = ()
    """Parameter dtypes of a module with dtypes of its own; empty if parameters have the run's dtype."""

    @property
    def title(self) -> str:
        """Return the model name, with the counted layers if the model is cut: ``llama, decoder layers 2 of 32``."""
        return ", ".join((self.name, *(f"{part} {of}" for part, of in sorted(self.cut.items()))))


ModuleKinds = dict[str, tuple[ModuleKind, ...]]
"""Kinds of modules by path pattern, with ``*`` for numbers; the model itself is ``(root)``."""

_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")


def folded_path(module: str) -> str:
    """Return the path of a module with ``*`` for numbers; ``(root)`` for the model itself."""
    return _NUMBER.sub("*", module) or "(root)"


_MOST_PIECES: Final = 16
"""Maximum number of pieces between borders of chunks from which decode steps are sampled."""


def sampled_steps(count: int, context: int = 0, chunk: int = 0) -> tuple[int, ...]:
    """Return the indices of decode steps that are enough to check linear costs: the first, a middle and the last.

    Costs of attention within chunks are linear over the steps up to the last position of a chunk, at which no key is
    hidden, and again from the next border on. Of each piece the first two steps, a middle one and the last are
    returned. With many pieces those of all steps are, which are on a line only if no border lies between.

    Args:
        count: number of steps.
        context: tokens in the cache before the first step.
        chunk: number of positions of a chunk; 0 for attention without chunks.
    """
    if not chunk:
        return tuple(sorted({0, (count - 1) // 2, count - 1})) if count else ()
    starts = [i for i in range(count) if not i or (context + i) % chunk in (0, chunk - 1)]
    starts = starts if len(starts) <= _MOST_PIECES else [0]
    pieces = [(a, b - 1) for a, b in pairwise([*starts, count])]
    return tuple(sorted({i for a, b in pieces for i in (a, min(a + 1, b), (a + 1 + b) // 2, b)}))


_WEIGHTS: Final[frozenset[Metric]] = frozenset({"weight_bytes", "weight_read_bytes", "unfused_bytes", "floor_bytes"})
_CACHE: Final[frozenset[Metric]] = frozenset({"kv_read_bytes", "kv_cache_bytes", "unfused_bytes", "floor_bytes"})


def _plan(workload: Workload) -> str:
    """Return the parallelism plan as an addition to the line on devices; empty for the default plan."""
    plan = str(workload.inputs.get(PLAN, ""))
    return "" if not plan else ", a given plan" if ": " in plan else f", plan {plan}"


def counted_line(target: TargetInfo, workload: Workload) -> str:
    """Return the line that states dtype, attention, cuts, unused keys, and formats that are not counted.

    In JSON these are ``workload.dtype``, ``workload.attention``, and ``cut``, ``waived`` and ``quantised`` of
    ``target``.
    """
    dtypes = " and ".join(target.dtypes) or workload.dtype
    cut = ", ".join(f"{part} {of}" for part, of in sorted(target.cut.items()))
    place = workload.inputs.get(SIZE_FROM)
    cache = workload.inputs.get(KV_DTYPE, workload.dtype)
    parts = [
        f"weights and cache {dtypes}" if dtypes == cache else f"weights {dtypes}, cache {cache}",
        f"{workload.attention} attention",
        f"cut to {cut}" if cut else "all layers",
        f"a past of {plural(workload.past, 'token')} in the cache" if workload.past else "",
        ""
        if (mesh := workload.mesh).one
        else f"rank {workload.rank} of {mesh.world} devices ({mesh.text}{_plan(workload)})",
        f"images of {workload.inputs.get('image_size')} pixels a side ({place})" if place else "",
        _unused(target),
    ]
    return f"Counted: {'; '.join(filter(None, (', '.join(filter(None, parts)), quantised_clause(target, workload))))}"


def proved_line(target: TargetInfo) -> str:
    """Return the line that states the conditions of a proof, whose runs have several dtypes and attention kernels."""
    cut = ", ".join(f"{part} {of}" for part, of in sorted(target.cut.items()))
    parts = [
        "dtypes and attention of the runs of the domain",
        f"cut to {cut}" if cut else "all layers",
        _unused(target),
    ]
    said = (", ".join(filter(None, parts)), _as_if(target, "in the dtype of the run"))
    return f"Counted: {'; '.join(filter(None, said))}"


def _unused(target: TargetInfo) -> str:
    """Return a clause on unused configuration keys; empty if the keys were not checked for use."""
    unused = len(target.waived.keys() - {WHOLE_FILE})
    used = "every key of the configuration used" if target.config is not None else ""
    if unused:
        used = f"{plural(unused, 'key')} of the configuration not used (target.waived in JSON)"
    whole = target.waived.get(WHOLE_FILE)
    return ", ".join(filter(None, (used, whole and f"the configuration {whole}")))


def quantised_clause(target: TargetInfo, workload: Workload) -> str:
    """Return a clause on the bytes that differ from the checkpoint's, with the reason; empty without quantisation."""
    return _as_if(cache_counted(target, workload), workload.dtype)


def weights_counted(target: TargetInfo) -> TargetInfo:
    """Return the target description without its weights' quantised format, once bytes are counted in that format."""
    return replace(target, quantised={part: text for part, text in target.quantised.items() if part != "weights"})


def cache_counted(target: TargetInfo, workload: Workload) -> TargetInfo:
    """Return the target description without its cache format if the workload sets a cache format to count."""
    if KV_DTYPE not in workload.inputs:
        return target
    return replace(target, quantised={part: text for part, text in target.quantised.items() if part != "cache"})


def _as_if(target: TargetInfo, dtype: str) -> str:
    if not target.quantised:
        return ""
    # Stored and resident bytes have the format; weight bytes, cache bytes and traffic do not.
    which = " and ".join(f"all of the {part}" if part == "cache" else f"all {part}" for part in target.quantised)
    what = " and ".join("weight" if part == "weights" else part for part in target.quantised)
    formats = "; ".join(f"{part} in {text}" for part, text in target.quantised.items())
    return f"{what} and traffic bytes as if {which} were {dtype}, the checkpoint is quantised: {formats}"


def unknown_bytes(target: TargetInfo, workload: Workload) -> frozenset[Metric]:
    """Return the metrics whose numbers differ from those of the quantised checkpoint."""
    found = {"weights": _WEIGHTS, "cache": _CACHE}
    parts = cache_counted(target, workload).quantised
    return frozenset(metric for part in parts for metric in found.get(part, _WEIGHTS | _CACHE))
