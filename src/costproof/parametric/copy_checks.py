"""Count a second time by which named copies all ranks of a mesh exceed one device, module by module.

The copies that a report names follow from one device's formulas at the sizes of ranks. Here they follow from the costs
of ranks themselves: those of this mesh, of the same mesh with whole sequences, and with the whole batch on each rank,
so that each axis has its own difference; and within these, role by role, so that bytes of one module cannot pass for
those of another. What a collective reads and writes follows from its payload. A difference is a defect of costproof.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Final

from costproof.algebra.evaluation import SymbolValues, evaluate, shared_values
from costproof.ledger.errors import Recount
from costproof.ledger.mesh import CP_PLAN, DISPATCH, PAIRS, PLAN, RANK, Parallel, own_batch
from costproof.ledger.metrics import FLOOR, KEPT_FLOPS, STAGE_WIDE, UNFUSED
from costproof.ledger.node import Ledger
from costproof.ledger.workload import FLOAT_BYTES, TargetInfo, Workload
from costproof.models.target import DATA_COPIES, SEQUENCE_COPIES
from costproof.parametric.access_checks import ENGINES, rows_of

PAYLOAD: Final = "comm_payload_bytes"
RoleCosts = Mapping[tuple[str, str, str], int]
"""Costs by stage, role and metric; the payloads of collectives by stage, "role kind" and metric."""


@dataclass(frozen=True, slots=True)
class RanksByRole:
    """Costs of all ranks by role, on the mesh of a run and on others."""

    run: Workload
    ranks: Sequence[RoleCosts]
    on_mesh: Callable[[Workload], Sequence[RoleCosts]]
    """Function that returns the costs of each rank of another run of the same model."""
    alone: RoleCosts
    """Costs of one device."""
    values: Mapping[tuple[str, str], SymbolValues]
    """Values of the symbols on one device, by stage and invocation."""


_NORMS, _ROUTERS, _TABLES = "norms", "routers", "tables of rotary embedding"
_LATENTS = "latents of MLA, and the projections to them"
_TOWERS = "towers and projectors, which the plan leaves whole"
_CALLS = "calls of modules that several ranks run"
_OF_LOGITS = "work on the logits of all entries"
_BETWEEN = "additions and other work between modules"
_ROWS = "rows of experts of other ranks, which the kernel gets and skips"
_CHOSEN = "experts that tokens of a rank choose at most"
_HEADS = "key/value heads that several ranks hold"
_BIASES = "biases added after a sum over ranks"
_OF_FORMAT = "scales, zero biases, indices and tables of formats that every rank has"
_BUFFERS = "buffers"
_LOOKED_UP = "rows that every rank looks up"
_READ_TABLES = "tables and masks that the attention of every rank reads"
_TIED = "tables of tied output projections on the last stage"
_PADDED, _UNEVEN = "padding of the vocabulary", "padding of uneven shards"
_STORED = "padding of the parts that ranks store"
_WORK = "work of split modules on whole tensors"
_WHOLE: Final = {
    "input_bytes": "inputs of split modules, which every rank reads",
    "output_bytes": "results of split modules, which every rank writes",
    UNFUSED: "inputs and results of split modules, which every rank reads or writes",
}
_SKIPPED = "pairs with keys after a rank's own positions, which it skips"
_SENT = "hidden states that stages send"
_SUMMED = "tensors that ranks add up, read and written by the collective"
_ELSEWHERE = "sums for tokens of other ranks, which a rank does not get"
_ZEROS = "looked-up rows of other ranks, overwritten with zeros"
_JOINED = "latents that are joined again behind a divided projection"
_LOGITS = "logits that every rank gathers"
_STATES = "hidden states of other ranks that a rank gathers"
_TOKENS = "tokens, results and weights of experts that ranks gather"
_OUTSIDE = "rows of other ranks, which do not enter or leave a mixture"
_OVERWRITTEN = "rows of experts of other ranks, overwritten with zeros"
_UNREAD = "tables that no layer of a stage reads"
_MERGED = "partial results of attention that ranks merge"
_PASSED = "keys and values that ranks pass around a ring"
_AGAIN = "queries, keys and values read again for each part"
_POSITIONS = "heads that ranks exchange for positions"
_TURNED = "queries and keys of heads that other ranks attend"
_OF_HEADS = "results of heads that ranks gather"
_FROM_CACHE = "latents that a rank without the new token projects from its cache"
_PARTS = "parts of parameters that ranks read to gather them"
_PARTS_COPIED = "copies of gathered parameters"
_MASKS = "masks that every rank reads"
_FEATURES = "features of images that every rank puts into the prompt"
_WEIGHED = "results that a rank weighs and adds behind the exchange"
_PAIRS = "pairs of tokens and experts, copied, exchanged and put in order"

_MEMORY: Final = frozenset({
    "params", "weight_bytes", "buffer_bytes", "params_active", "stored_bytes", "stored_elements", "resident_bytes",
})  # fmt: skip
_STORED_METRICS: Final = frozenset({"stored_bytes", "stored_elements", "resident_bytes"})
_ROOT, _LAYER, _CORE, _MIXTURE = "root", "text.layer", "text.layer.attention", "text.layer.experts"
_LATENT: Final = tuple(f"{_CORE}.{x}" for x in ("q_down", "q_norm", "kv_down", "kv_norm"))
_Named = defaultdict[str, int | Fraction]
"""Copies of a metric by cause."""
_ByRole = defaultdict[tuple[str, str], int | Fraction]
"""Bytes or operations by role and cause."""


def copy_recounts(
    found: Parallel, workload: Workload, one: Ledger, info: TargetInfo, ranks: RanksByRole
) -> Iterator[Recount]:
    """Yield second counts of all named copies of all metrics.

    Args:
        found: the result for all ranks.
        workload: the run, with the whole prompt.
        one: evaluated formulas of the same batch on one device.
        info: the target, with the numbers of its configuration.
    """
    copies = _Copies.of(workload, one, info, ranks)
    named: dict[tuple[str, str], Counter[str]] = {}
    for d in found.duplicates:
        named.setdefault((d.stage, d.metric), Counter())[d.what] += d.amount
    slices = DISPATCH in workload.inputs and workload.mesh.tp > 1  # of tokens, of which each rank sends its own
    for stage, metrics in found.one_device.items():
        for metric in metrics if not (stage and slices) else ():
            again = copies.at_floor(stage) if metric == FLOOR else copies.named(stage, metric)
            have = named.get((stage, metric), Counter[str]())
            for cause in sorted({*have, *again} - copies.left_out(stage, metric)):
                yield Recount(stage, cause, metric, have[cause], again[cause])


@dataclass(frozen=True, slots=True)
class _Copies:
    """Copies of a mesh, from the costs of its ranks and of those of the mesh with fewer axes."""

    workload: Workload
    one: Ledger
    info: TargetInfo
    ranks: RanksByRole
    meshes: tuple[_OnMesh, _OnMesh, _OnMesh]
    """The mesh, the same with whole sequences, and one ``tp`` group in each pipeline stage with the whole batch."""
    one_device: Mapping[tuple[str, str], Mapping[str, int]]
    """Costs of one device by stage and metric, then by role."""
    split: frozenset[str]
    """Parts of the decoder that ranks along ``tp`` divide."""

    @classmethod
    def of(cls, workload: Workload, one: Ledger, info: TargetInfo, ranks: RanksByRole) -> _Copies:
        mesh = workload.mesh
        uncut = _without(workload, "cp", CP_PLAN)
        grouped = _without(uncut, "dp", "fsdp", DISPATCH, PAIRS, *(("ep",) if mesh.batches > 1 else ()))
        if mesh.batches > 1 and mesh.tp > 1:
            grouped = replace(grouped, inputs={**grouped.inputs, "ep": mesh.tp})

        def on(run: Workload) -> _OnMesh:
            if run.inputs.keys() - {RANK} == workload.inputs.keys() - {RANK}:
                return _OnMesh.of(run, ranks.ranks)
            if run.mesh.one:
                return _OnMesh.of(run, [ranks.alone])
            return _OnMesh.of(run, ranks.on_mesh(replace(ranks.run, inputs=run.inputs)))

        split = _split_parts(workload, one, ranks.ranks)
        return cls(workload, one, info, ranks, (on(workload), on(uncut), on(grouped)), _by_metric([(ranks.alone, 1)]),
                   split)  # fmt: skip

    @property
    def latent(self) -> bool:
        return "text_kv_rank" in self.info.symbols

    @property
    def by_heads(self) -> bool:
        return self.workload.inputs.get(CP_PLAN) == "ulysses" and not self.latent

    @property
    def copies(self) -> int:
        """How many ranks along ``tp`` hold the same key/value head."""
        heads = self.info.symbols.get("text_kv_heads", 0)
        return max(1, self.workload.mesh.tp // heads) if "attention" in self.split and heads else 1

    def left_out(self, stage: str, metric: str) -> frozenset[str]:
        """Return the causes that are not counted here.

        Pairs of a token and an expert are counted with the collective that sends them, in :mod:`rank_checks`; so are
        weighed results, or they are all that is left of the sum over ranks. That holds for the masks of a model with
        windows, and for biases of experts that got pairs, too.
        """
        found = set[str]()
        if stage and DISPATCH in self.workload.inputs:
            found |= {_CHOSEN} if metric == FLOOR and self._biased_experts else {_WEIGHED, _PAIRS}
        if metric == FLOOR and "text_window" in self.info.symbols:
            found.add(_MASKS)
        if metric == FLOOR and self._features is None:
            found.add(_FEATURES)
        return frozenset(found)

    def named(self, stage: str, metric: str, left: Collection[str] = ()) -> _Named:
        """Return the copies of a metric by cause, or of memory of whole ranks, without a stage.

        Args:
            left: roles that are left out.
        """
        mesh = self.workload.mesh
        if mesh.fsdp > 1 and metric in _STORED_METRICS:
            return self._of_storage(metric)
        sums = [_sum(of.sums.get((stage, metric), {})) for of in self.meshes]
        alone = self.one_device.get((stage, metric), {})
        # What ranks exchange, by role and cause, on each of the meshes.
        moves = stage and metric not in STAGE_WIDE
        moved = [self._exchanged(of, stage, metric) if moves else _ByRole(int) for of in self.meshes]
        found = _Named(int)
        if skipped := self._skipped(stage, metric):
            moved[0][_CORE, _SKIPPED] += skipped
        for (role, cause), amount in moved[0].items():
            if role not in left:
                found[cause] += amount
        for of_mesh, of_moved in zip(sums, moved, strict=True):
            for (role, _), amount in of_moved.items():
                of_mesh[role] -= amount
        for role in {*sums[0], *sums[1], *sums[2], *alone} - {*left}:
            every, data, group, one = *(of_mesh[role] for of_mesh in sums), alone.get(role, 0)
            if role.startswith(_MIXTURE) and mesh.batches > 1:
                found = _sum(found, self._of_shared_experts(stage, role, metric, every, one))
                continue
            found = _sum(found, self._along_tp(stage, role, metric, group - one))
            if mesh.fsdp > 1 and metric in ("params", "weight_bytes"):
                replica = Fraction(every, mesh.dp)
                found[_STORED] += replica - group
                found[DATA_COPIES] += every - replica
                continue
            again = mesh.cp * (data - group)
            found[DATA_COPIES] += again
            found[SEQUENCE_COPIES] += every - group - again
        return found

    def _of_storage(self, metric: str) -> _Named:
        """Return the copies of what ranks store that have parts of parameters: those of the parts, and all buffers."""
        mesh = self.workload.mesh

        def held(name: str) -> int:
            return sum(self.one_device.get(("", name), {}).values())

        if metric == "resident_bytes":
            return _sum(self.named("", "weight_bytes"), self.named("", "buffer_bytes"))
        params, size = held("params"), held(metric)
        item = size // params
        found = _Named(int, {cause: item * amount for cause, amount in self.named("", "params").items()})
        found[_BUFFERS] += (mesh.world // mesh.pp - 1) * (size - params * item)
        return found

    def _along_tp(self, stage: str, role: str, metric: str, more: int | Fraction) -> _Named:
        """Return by cause what the ranks of a ``tp`` group, in all pipeline stages, have more of a role's cost."""
        symbols, mesh, item = self.info.symbols, self.workload.mesh, FLOAT_BYTES[self.workload.dtype]
        found = _Named(int)
        rows = self._rows(stage)
        part = _part_of(role)
        if role == "lm_head" and mesh.pp > 1 and not self._held(role) and metric in _MEMORY:
            found[_TIED] += more
            return found
        if metric in _STORED_METRICS and part in self.split and not (self.latent and role in _LATENT):
            return self._stored_along_tp(role, part, metric, more)
        if role in (f"{_CORE}.k", f"{_CORE}.v", f"{_CORE}.k_norm", _CORE) and "attention" in self.split:
            if not self.latent and metric != "calls":
                if role.endswith((".k", ".v")):
                    layers = self._modules(stage, role)
                    inputs = (mesh.tp - 1) * layers * rows * symbols["text_hidden"] * item
                    heads = more - (inputs if metric in ("input_bytes", UNFUSED) else 0)
                else:
                    heads = (self.copies - 1) * self._of_kv_heads(stage, role, metric)
                found[_HEADS] += heads
                more -= heads
        elif part in ("embedding", "head") and part in self.split and metric != "calls":
            padded, _ = rows_of(str(self.workload.inputs.get(PLAN, "")), symbols["text_vocab"], mesh.tp)
            pad = padded - symbols["text_vocab"]
            positions = self._positions(stage)
            elements = symbols["text_hidden"] * pad
            if role == "lm_head":
                extra = {
                    "flops": 2 * positions * elements, KEPT_FLOPS: 2 * positions * elements,
                    "weight_read_bytes": self._calls(stage) * elements * item, "output_bytes": positions * pad * item,
                    UNFUSED: self._calls(stage) * elements * item + positions * pad * item,
                }.get(metric, 0)  # fmt: skip
            else:
                extra = 0
            if metric in _MEMORY and metric != "buffer_bytes":
                extra = self._held(role) * pad // symbols["text_vocab"] * (item if metric == "weight_bytes" else 1)
            found[_PADDED] += extra
            more -= extra
        if role == _MIXTURE and mesh.ep > 1 and metric in ("weight_read_bytes", UNFUSED):
            read = self._more(stage, role, "weight_read_bytes") - self._biases_of_rows(stage)
            found[_CHOSEN] += read
            more -= read
            if metric == "weight_read_bytes" and more:
                found[_BIASES if part in self.split else "experts, which the plan leaves whole"] += more
                return found
        if more:
            found[self._main(stage, role, metric)] += more
        return found

    def _more(self, stage: str, role: str, metric: str) -> int:
        """Return what the ranks of a ``tp`` group have more of a role's cost than one device."""
        every = self.meshes[2].sums.get((stage, metric), {}).get(role, 0)
        return every - self.one_device.get((stage, metric), {}).get(role, 0)

    def _held(self, role: str) -> int:
        """Return the parameters of a role's modules; 0 for an output projection that reads the embedding's table."""
        return self.ranks.alone.get(("", role, "params"), 0)

    def _stored_along_tp(self, role: str, part: str, metric: str, more: int | Fraction) -> _Named:
        """Return the copies of what a divided module stores: what does not depend on its width, and the rest.

        The former are biases that every rank has, and scales and tables of a quantised format; blocks of a format that
        a rank has in part are the latter.
        """
        mesh, found = self.workload.mesh, _Named(int)
        sizes = {
            "attention": ("text_heads", *(() if self.latent else ("text_kv_heads",))), "mlp": ("text_intermediate",),
            "experts": ("text_experts",) if mesh.ep > 1 else ("text_moe",), "shared": ("text_moe", "text_shared"),
        }.get(part, ("text_vocab",))  # fmt: skip
        whole = (mesh.tp - 1) * self._at("", role, metric, dict.fromkeys(sizes, 0))
        biases = self._more("", role, "params") if part not in ("embedding", "head") else 0
        name = _BUFFERS if part == "embedding" else _BIASES
        if part != "embedding" and (not biases or self._heads_of(role)):
            name = _OF_FORMAT
        elif part != "embedding" and (whole % biases or whole // biases not in (1, 2, 4)):
            name = f"{_BIASES}, and {_OF_FORMAT}"
        found[name] += whole
        padded = part in ("embedding", "head") and self.workload.inputs.get(PLAN) in ENGINES
        found[_HEADS if self._heads_of(role) and self.copies > 1 else _PADDED if padded else _UNEVEN] += more - whole
        return found

    def _heads_of(self, role: str) -> bool:
        """Return whether a role projects to keys or values."""
        return not self.latent and role in (f"{_CORE}.k", f"{_CORE}.v")

    def _at(self, stage: str, role: str, metric: str, changed: Mapping[str, int]) -> int:
        """Return a role's cost on one device with other numbers of some sizes."""
        found = 0
        nodes = [n for n in self.one.nodes if n.role == role and metric in n.exprs and (not stage or n.stage == stage)]
        nodes = list({n.module: n for n in nodes}.values()) if not stage else nodes
        for (expr, place), times in Counter((n.exprs[metric], (n.stage, n.invocation)) for n in nodes).items():
            of_call = self.ranks.values.get(place) or shared_values(self.ranks.values.values())
            found += times * evaluate(expr, {**self.info.symbols, **of_call, **changed})
        return found

    def _modules(self, stage: str, role: str) -> int:
        """Return the number of a role's modules on one device."""
        return self.ranks.alone.get((stage, role, "calls"), 0) // max(1, self._calls(stage))

    def _calls(self, stage: str) -> int:
        return self.workload.new_tokens if stage == "decode" else 1

    def _rows(self, stage: str) -> int:
        """Return the tokens of the whole batch in a stage."""
        run = self.workload
        return run.batch * (run.text_tokens if stage == "prefill" else run.new_tokens if stage == "decode" else 0)

    def _positions(self, stage: str) -> int:
        """Return how many positions of the whole batch get logits."""
        one = stage == "prefill" and self.workload.logits == "last"
        return self.workload.batch if one else self._rows(stage)

    def _of_kv_heads(self, stage: str, role: str, metric: str) -> int:
        """Return the part of a role's cost on one device that grows with its key/value heads."""
        heads = self.info.symbols["text_kv_heads"]
        once, twice = (self._at(stage, role, metric, {"text_kv_heads": n * heads}) for n in (1, 2))
        return twice - once

    def _main(self, stage: str, role: str, metric: str) -> str:
        """Return the name of what every rank of a ``tp`` group has whole of a role's cost."""
        part, mesh = _part_of(role), self.workload.mesh
        weights = metric in _MEMORY or metric == "weight_read_bytes"
        if metric == "buffer_bytes":
            return _BUFFERS
        if metric == "calls":
            return _CALLS
        if role == "root":
            return _OF_LOGITS
        if role in ("text", _LAYER) or (role == f"{_LAYER}.mlp" and "mlp" in self.split):
            return _BETWEEN
        if part == "experts" and mesh.ep > 1:
            if metric in ("params_active", "weight_read_bytes"):
                return _CHOSEN
            return _UNEVEN if weights else _ROWS
        if self.latent and (role in _LATENT or metric == "kv_cache_bytes"):
            return _LATENTS
        if part is None:
            return _whole_name(role)
        if part not in self.split:
            return f"{part}, which the plan leaves whole"
        if role == _CORE and self.latent and metric in ("output_bytes", "kv_read_bytes", UNFUSED):
            return _LATENTS
        if weights:
            if part == "embedding":
                return _BUFFERS if metric in _MEMORY else _LOOKED_UP
            return _BIASES
        if role == _CORE and metric in ("input_bytes", UNFUSED):
            return _READ_TABLES
        return _WHOLE.get(metric, _WORK)

    def _of_shared_experts(self, stage: str, role: str, metric: str, every: int | Fraction, one: int) -> _Named:
        """Return the copies of experts that ranks with several batches share."""
        mesh, symbols, item = self.workload.mesh, self.info.symbols, FLOAT_BYTES[self.workload.dtype]
        found, more = _Named(int), every - one
        if metric in _MEMORY:
            groups = mesh.dp // mesh.batches
            data = every - every // groups
            found[DATA_COPIES] += data
            if more - data:
                found[_CHOSEN if metric == "params_active" else _UNEVEN] += more - data
            return found
        if DISPATCH in self.workload.inputs:  # as many pairs arrive at all ranks as on one device
            read = self._more_of_all(stage, role, "weight_read_bytes")
            if metric == UNFUSED and role == _MIXTURE:
                found[_CHOSEN] += read
                wide = (
                    item
                    if self.workload.experts == "batched_mm"
                    else 2 * (symbols["text_hidden"] + symbols["text_moe"]) * item
                )
                pairs = self._rows(stage) * self._modules(stage, role) * symbols["text_topk"]
                found[_OVERWRITTEN] += 2 * pairs * (item + wide)
                return found
            names = {"calls": DATA_COPIES, "weight_read_bytes": _CHOSEN, "vector_flops": _WEIGHED}
            if more:
                found[names.get(metric, _ROWS)] += more
            return found
        if role == _MIXTURE and metric in ("input_bytes", "output_bytes"):
            states = symbols["text_hidden"] * item
            weights = symbols["text_topk"] * (4 if self._wide else item)
            each = states + (weights if metric == "input_bytes" else 0)
            own = (mesh.tp - 1) * self._rows(stage) * self._modules(stage, role) * each
            found[_WHOLE[metric]] += own
            more -= own
        if metric == UNFUSED and role == _MIXTURE:
            read = self._more_of_all(stage, role, "weight_read_bytes") - self._biases_of_rows(stage)
            found[_CHOSEN] += read
            more -= read
        if more:
            name = _CHOSEN if metric == "weight_read_bytes" else _CALLS if metric == "calls" else _ROWS
            found[name] += more
        return found

    def _more_of_all(self, stage: str, role: str, metric: str) -> int:
        """Return what all ranks have more of a role's cost than one device."""
        key = (stage, metric)
        return self.meshes[0].sums.get(key, {}).get(role, 0) - self.one_device.get(key, {}).get(role, 0)

    def _biases_of_rows(self, stage: str) -> int:
        """Return the bytes of the biases of experts that all ranks look up more than one device, row by row."""
        symbols, mesh = self.info.symbols, self.workload.mesh
        rows = self._rows(stage) * self._modules(stage, _MIXTURE) * symbols["text_topk"] * self._biased_experts
        each = 2 * symbols["text_moe"] + symbols["text_hidden"]
        return (mesh.ep - 1) * rows * each * FLOAT_BYTES[self.workload.dtype]

    @property
    def _wide(self) -> bool:
        """Whether the router gives weights in float32, by what it writes for a token."""
        symbols = self.info.symbols
        role, stage = f"{_LAYER}.router", "prefill"
        out = self.ranks.alone.get((stage, role, "output_bytes"), 0)
        return out == 4 * self._rows(stage) * symbols["text_topk"] * self._modules(stage, role)

    # --- Exchanges -----------------------------------------------------------------------------------------------

    def _exchanged(self, ranks: _OnMesh, stage: str, metric: str) -> _ByRole:
        """Return what ranks of a mesh read, write and compute for exchanges, by role and cause."""
        found = _ByRole(int)
        for of in ranks.kinds:
            for role, cause, amount in self._of_rank(of, stage, metric):
                found[role, cause] += of.times * amount
        return found

    def _of_rank(self, of: _RankKind, stage: str, metric: str) -> Iterator[tuple[str, str, int | Fraction]]:
        """Yield (role, cause, amount) of what one rank reads, writes and computes for exchanges."""
        costs, run = of.by_role, of.run
        mesh, item, calls = run.mesh, FLOAT_BYTES[run.dtype], self._calls(stage)
        symbols = self.info.symbols
        length = run.own_tokens if stage == "prefill" else calls
        tokens = run.own_batch * length
        several = run.own_batch > 1
        if not tokens:  # no steps
            return
        paid = of.payloads.get(stage, {})
        for (role, kind), payload in paid.items():
            if role == _CORE:
                continue
            if kind == "send":
                if metric in ("input_bytes", UNFUSED):
                    yield role, _SENT, payload
            elif role in (_ROOT, _LAYER):  # parts of parameters
                own = Fraction(payload, mesh.fsdp * mesh.cp)
                if metric in ("weight_read_bytes", UNFUSED):
                    yield role, _PARTS, own
                if metric == UNFUSED:
                    yield role, _PARTS_COPIED, 2 * own + 2 * payload
            elif role == "lm_head":
                yield from self._gathered_logits(payload, run, stage, metric)
            elif kind == "all_gather" and role != _MIXTURE:  # tokens of other ranks
                if metric == UNFUSED:
                    yield role, _STATES, payload * (3 if several else 1) + Fraction(payload, mesh.tp)
            elif kind in ("all_reduce", "reduce_scatter") and not (role == _MIXTURE and kind == "reduce_scatter"):
                scattered = kind == "reduce_scatter"
                if metric == UNFUSED:
                    yield role, _SUMMED, (4 if scattered and several else 2) * payload
                    if scattered:
                        yield role, _ELSEWHERE, Fraction(payload, mesh.tp) - payload
                    if role == "text.embedding":
                        yield role, _ZEROS, 2 * (payload + calls * item)
                if role in (f"{_CORE}.out", f"{_LAYER}.mlp.down") and costs.get((stage, role, "vector_flops"), 0):
                    added = Fraction(payload, mesh.tp if scattered else 1)
                    if metric in ("vector_flops", UNFUSED):
                        yield role, _BIASES, added / item if metric == "vector_flops" else 2 * added
        if metric == UNFUSED:
            role = f"{_CORE}.kv_down"
            if self.latent and "attention" in self.split and PLAN not in run.inputs:
                here = costs.get((stage, role, "calls"), 0) // max(1, calls)
                yield role, _JOINED, 2 * here * tokens * (symbols["text_kv_rank"] + symbols["text_rope"]) * item
            if mesh.ep > 1 and DISPATCH not in run.inputs:
                yield from self._of_experts(of, stage, tokens)
            if mesh.pp > 1 and tokens:
                role, whole = "text.rotary", self.ranks.alone.get((stage, "text.rotary", "output_bytes"), 0)
                written = Fraction(whole * length, self.workload.text_tokens if stage == "prefill" else calls)
                yield role, _UNREAD, costs.get((stage, role, "output_bytes"), 0) - written
        if mesh.cp > 1:
            yield from self._of_sequence(costs, run, stage, metric, paid)

    def _gathered_logits(
        self, payload: int, run: Workload, stage: str, metric: str
    ) -> Iterator[tuple[str, str, int | Fraction]]:
        """Yield (role, cause, amount) of the logits that a rank gathers, from the chunks of their columns."""
        mesh, symbols = run.mesh, self.info.symbols
        padded, share = rows_of(str(run.inputs.get(PLAN, "")), symbols["text_vocab"], mesh.tp)
        chunk = Fraction(payload, mesh.tp)
        own = len(range(padded)[run.rank % mesh.tp * share :][:share])
        if metric == "output_bytes":
            columns = mesh.tp * share
            named = chunk / share * padded * Fraction(mesh.tp - 1, mesh.tp)
            uneven = chunk / share * (columns - padded)
            yield "lm_head", _LOGITS, named
            yield "lm_head", _PADDED if run.inputs.get(PLAN) in ENGINES else _UNEVEN, uneven
        elif metric == UNFUSED:
            length = run.own_tokens if stage == "prefill" and run.logits == "all" else 1
            joined = 2 * mesh.tp * chunk if run.own_batch * length > 1 else 0
            filled = chunk / share * own + chunk if own < share else 0
            yield "lm_head", _LOGITS, chunk + mesh.tp * chunk + joined + filled

    def _of_experts(self, of: _RankKind, stage: str, tokens: int) -> Iterator[tuple[str, str, int | Fraction]]:
        """Yield (role, cause, amount) of rows that experts of a rank get, overwrite and return."""
        run, symbols, item = of.run, self.info.symbols, FLOAT_BYTES[of.run.dtype]
        layers = of.by_role.get((stage, _MIXTURE, "calls"), 0) // max(1, self._calls(stage))
        if not layers:
            return
        hidden, inner, top_k = symbols["text_hidden"], symbols["text_moe"], symbols["text_topk"]
        weight, every = 4 if self._wide else item, Fraction(of.sequences * tokens, run.own_batch)
        wide = weight if run.experts == "batched_mm" else 2 * (hidden + inner) * item
        yield _MIXTURE, _OVERWRITTEN, 2 * layers * every * top_k * (weight + wide)
        if run.mesh.batches > 1:
            state, weights = hidden * item, top_k * weight
            yield _MIXTURE, _TOKENS, layers * every * (4 * state + 2 * weights)
            yield _MIXTURE, _OUTSIDE, -layers * (every - tokens) * (2 * state + weights)

    def _of_sequence(
        self, costs: RoleCosts, run: Workload, stage: str, metric: str, paid: Mapping[tuple[str, str], int]
    ) -> Iterator[tuple[str, str, int | Fraction]]:
        """Yield (role, cause, amount) of the attention of a rank to a sequence that it shares with others."""
        cp, item, symbols = run.mesh.cp, FLOAT_BYTES[run.dtype], self.info.symbols
        layers = costs.get((stage, _CORE, "calls"), 0) // max(1, self._calls(stage))
        brought, added = (paid.get((_CORE, kind), 0) for kind in ("all_gather", "all_reduce"))
        if stage == "prefill" and run.inputs.get(CP_PLAN) == "ulysses":
            if metric == UNFUSED:  # put in order, exchanged and joined
                yield _CORE, _POSITIONS, 6 * paid.get((_CORE, "all_to_all"), 0)
        elif stage == "prefill":
            yield from self._of_ring(run, metric, layers)
        elif self.by_heads:
            heads, kv_heads, width, _ = self._widths
            turned = layers * self._of_new(run) * (heads + kv_heads) * width * Fraction(cp - 1, cp)
            rotary = self._of_kv_heads(stage, _CORE, "vector_flops")
            each = Fraction(rotary, self._modules(stage, _CORE) * self._rows(stage) * symbols["text_kv_heads"] * width)
            times: dict[str, int | Fraction] = {"vector_flops": each, "input_bytes": item}
            times |= {UNFUSED: item * (9 if each == 3 else 10)}
            yield _CORE, _TURNED, turned * times.get(metric, 0)
            parts = {"output_bytes": 1 - Fraction(1, cp), UNFUSED: 3 + Fraction(1, cp)}
            yield _CORE, _OF_HEADS, brought * parts.get(metric, 0)
        else:
            rows = Fraction(brought, 4 * cp)
            if metric == "vector_flops":
                yield _CORE, _MERGED, rows * (4 * cp + 4) + Fraction(added, item)
            elif metric == UNFUSED:
                yield _CORE, _MERGED, 4 * added + rows * (36 + 8 * cp)
            expands = self.latent and run.inputs.get("decoding") != "absorbed"
            if expands and not run.keeps_new_tokens and metric in ("input_bytes", UNFUSED):
                # The latents of its context, which it reads from the cache in each step.
                read = layers * self._of_new(run) * run.own_tokens * symbols["text_kv_rank"] * item
                yield f"{_CORE}.kv_up", _FROM_CACHE, -read

    @property
    def _widths(self) -> tuple[int, int, int, int]:
        """Query and key/value heads of a rank, and the widths of a key and of a value."""
        symbols, tp = self.info.symbols, self.workload.mesh.tp if "attention" in self.split else 1
        heads = symbols["text_heads"] // tp
        if self.latent:
            return heads, heads, symbols["text_nope"] + symbols["text_rope"], symbols["text_value"]
        return heads, max(1, symbols["text_kv_heads"] // tp), *(symbols["text_head_dim"],) * 2

    def _of_new(self, run: Workload) -> int:
        return run.own_batch * run.new_tokens

    def _of_ring(self, run: Workload, metric: str, layers: int) -> Iterator[tuple[str, str, int | Fraction]]:
        """Yield what a rank of a ring adds, step by step, in halves of its positions.

        A merge reads the result twice and writes it once; outside of the merges a result is in the dtype of the run:
        when it is first read, and when it is written last. Merges of half of the positions are joined with the others.
        """
        cp, at = run.mesh.cp, run.mesh.coordinates(run.rank).cp
        heads, kv_heads, key, value = self._widths
        item, zigzag = FLOAT_BYTES[run.dtype], run.inputs.get(CP_PLAN, "zigzag") == "zigzag"
        half = layers * Fraction(run.own_batch * run.own_tokens, 2)
        mine = [at, 2 * cp - 1 - at] if zigzag else [2 * at, 2 * at + 1]
        merged = joins = narrow = read = passed = 0
        for step in range(1, cp):
            source = (at - step) % cp
            theirs = [source, 2 * cp - 1 - source] if zigzag else [2 * source, 2 * source + 1]
            queries = sum(any(part <= query for part in theirs) for query in mine)
            keys = sum(any(part <= query for query in mine) for part in theirs)
            last = step == cp - 1 and not queries  # nothing reads what arrives
            passed += 2 * (3 if last else 4)
            if not queries:
                continue
            read += queries * heads * key + keys * kv_heads * (key + value)
            narrow += 0 if merged else 2 * queries + (2 - queries)
            merged += queries
            joins += queries == 1
        narrow += 2 if merged else 0
        rows = half * heads
        if metric == "vector_flops":
            yield _CORE, _MERGED, merged * rows * (3 * value + 8)
        elif metric == UNFUSED:
            yield _CORE, _AGAIN, read * half * item
            yield _CORE, _PASSED, passed * half * kv_heads * (key + value) * item
            moved = merged * ((28 + 2 * item) * value + 60) + joins * 8 * 2 * (value + 1)
            yield _CORE, _MERGED, rows * (moved - (4 - item) * narrow * value)

    def _skipped(self, stage: str, metric: str) -> Fraction:
        """Return the cost of the pairs of a prompt that ranks of a ring leave out: half of those between ranks."""
        mesh = self.workload.mesh
        if stage != "prefill" or mesh.cp == 1 or self.workload.inputs.get(CP_PLAN) == "ulysses":
            return Fraction(0)
        heads, _, key, value = self._widths
        each = {"flops": 2 * (key + value), "vector_flops": 6}.get(metric, 0)  # softmax 5, a scale
        pairs = self._modules(stage, _CORE) * self._rows(stage) * self.workload.text_tokens
        return Fraction(-each * heads * mesh.tp * pairs * (mesh.cp - 1), 2 * mesh.cp)

    # --- Floors --------------------------------------------------------------------------------------------------

    def at_floor(self, stage: str) -> _Named:
        """Return the copies of a floor by cause: of what lasts, and of what crosses the boundary of the decoder."""
        if (stage, "text", "calls") not in self.ranks.alone:
            return self.named(stage, FLOOR)
        mesh, symbols, item = self.workload.mesh, self.info.symbols, FLOAT_BYTES[self.workload.dtype]
        alone, run, calls = self.ranks.alone, self.workload, self._calls(stage)
        found = _Named(int)
        biased = self._biased_experts
        for metric, left in (
            ("kv_cache_bytes", frozenset[str]()), ("kv_read_bytes", frozenset[str]()),
            ("weight_read_bytes", frozenset({"text.embedding", *((_MIXTURE,) if biased else ())})),
        ):  # fmt: skip
            for cause, amount in self.named(stage, metric, left).items():
                found[cause] += amount
        every = {role for of, role, _ in alone if of == stage}
        for cause, amount in self.named(
            stage,
            "input_bytes",
            every - {"text.rotary", "text.embedding"},
        ).items():
            found[cause] += amount
        found[_SENT] += 2 * self.meshes[0].sums.get((stage, PAYLOAD), {}).get("text send", 0)
        groups = [replace(run, inputs={**run.inputs, RANK: r}) for r in range(mesh.world // mesh.pp)]
        width, vocabulary = symbols["text_hidden"] * item, symbols["text_vocab"]
        padded, share = rows_of(str(run.inputs.get(PLAN, "")), vocabulary, mesh.tp)
        tied = not self._held("lm_head")
        looked_up = 0 if tied else -min(run.batch * (run.text_tokens if stage == "prefill" else 1), vocabulary)
        positions = 0
        for of in groups:
            length = of.own_tokens if stage == "prefill" else 1
            entries = vocabulary
            if "embedding" in self.split:
                entries = len(range(padded)[of.rank % mesh.tp * share :][:share])
            looked_up += min(of.own_batch * length, entries)
            positions += of.own_batch * (1 if run.logits == "last" else length) * calls
        found[_LOOKED_UP] += 0 if tied and mesh.pp == 1 else looked_up * calls * width
        found[_ROUTERS] += alone.get(("", f"{_LAYER}.router", "buffer_bytes"), 0) * calls * (len(groups) - 1)
        kept = self._positions(stage)
        found[SEQUENCE_COPIES] += (Fraction(positions, mesh.tp) - kept) * vocabulary * item
        found[_LOGITS] += Fraction((mesh.tp - 1) * positions * vocabulary * item, mesh.tp)
        capped = alone.get((stage, _ROOT, "vector_flops"), 0) > 0
        if "head" in self.split and not capped:
            found[_PADDED if run.inputs.get(PLAN) in ENGINES else _UNEVEN] += (
                positions * (mesh.tp * share - vocabulary) * item
            )
        if biased:
            found[_CHOSEN] += self._read_by_experts(groups, stage) - self._read_by_experts([], stage)
        if run.attention == "eager":
            found[_MASKS] += item * self._masks(stage, groups)
        if stage == "prefill":
            placed = run.batch * (run.text_tokens - self.ranks.run.text_tokens)
            found[_FEATURES] += (mesh.tp - 1) * ((self._features or 0) + placed * width)
        return found

    @property
    def _features(self) -> int | None:
        """Bytes of the features that a projector returns, which enter the prompt; ``None`` without a projector."""
        returned = self.one_device.get(("projector", "output_bytes"), {})
        return returned.get("projector.down", returned.get("projector"))

    @property
    def _biased_experts(self) -> bool:
        symbols = self.info.symbols
        held, layers = self.ranks.alone.get(("", _MIXTURE, "params"), 0), self._modules("prefill", _MIXTURE)
        return held > 3 * layers * symbols.get("text_experts", 0) * symbols["text_hidden"] * symbols.get("text_moe", 0)

    def _read_by_experts(self, ranks: Sequence[Workload], stage: str) -> int:
        """Return the bytes of the experts, with biases, that the tokens of ranks, or of one device, touch at most."""
        symbols, run, mesh = self.info.symbols, self.workload, self.workload.mesh
        hidden, inner, experts = symbols["text_hidden"], symbols["text_moe"], symbols["text_experts"]
        found = 0
        for of in ranks or [run]:
            own = experts // mesh.ep if ranks else experts
            width = inner // (mesh.tp if ranks and mesh.ep == 1 and "experts" in self.split else 1)
            tokens = of.own_batch if ranks else run.batch
            if ranks and mesh.batches > 1:
                first = of.rank - of.rank % mesh.ep
                tokens = sum(r.own_batch for r in ranks[first : first + mesh.ep]) // mesh.tp
            tokens *= (of.own_tokens if ranks else run.text_tokens) if stage == "prefill" else 1
            chosen = min(own, tokens * symbols["text_topk"])
            found += chosen * (3 * hidden * width + 2 * width + hidden)
        return found * self._calls(stage) * self._modules(stage, _MIXTURE) * FLOAT_BYTES[run.dtype]

    def _masks(self, stage: str, groups: Sequence[Workload]) -> int:
        """Return the elements by which masks of all ranks exceed those of one device, call by call, without windows."""
        run, found = self.workload, 0
        for step in range(self._calls(stage)):
            queries = run.text_tokens if stage == "prefill" else 1
            keys = run.past + run.text_tokens + (0 if stage == "prefill" else step + 1)
            found += queries * keys * (run.mesh.pp * sum(of.own_batch for of in groups) - run.batch)
        return found


@dataclass(frozen=True, slots=True)
class _RankKind:
    """Ranks of a mesh with equal costs and exchanges."""

    by_role: RoleCosts
    run: Workload
    """The run, with the first of them as the counted rank."""
    times: int
    """Number of the ranks."""
    sequences: int
    """Number of sequences whose tokens reach the experts of such a rank: of its ``ep`` group, or of its own batch."""
    payloads: Mapping[str, Mapping[tuple[str, str], int]]
    """Payloads of collectives by stage, then by (role, kind)."""


@dataclass(frozen=True, slots=True)
class _OnMesh:
    """Costs of all ranks of a mesh."""

    kinds: tuple[_RankKind, ...]
    sums: Mapping[tuple[str, str], Mapping[str, int]]
    """Costs of all ranks by stage and metric, then by role."""

    @classmethod
    def of(cls, run: Workload, ranks: Sequence[RoleCosts]) -> _OnMesh:
        mesh = run.mesh
        alike: dict[tuple[int, int, int, int, int], list[int]] = {}
        batches = [own_batch(run.batch, mesh, rank) for rank in range(mesh.world)]
        for rank, costs in enumerate(ranks):
            at, first = mesh.coordinates(rank), rank - rank % mesh.ep
            near = range(first + rank % mesh.tp, first + mesh.ep, mesh.tp) if mesh.batches > 1 else (rank,)
            key = id(costs), batches[rank], at.tp, at.cp, sum(batches[r] for r in near)
            alike.setdefault(key, []).append(rank)
        kinds = []
        for key, same in alike.items():
            costs = ranks[same[0]]
            payloads: dict[str, dict[tuple[str, str], int]] = {}
            for (stage, role, metric), cost in costs.items():
                if metric == PAYLOAD:
                    module, _, kind = role.partition(" ")
                    payloads.setdefault(stage, {})[module, kind] = cost
            own = replace(run, inputs={**run.inputs, RANK: same[0]})
            kinds.append(_RankKind(costs, own, len(same), key[-1], payloads))
        return cls(tuple(kinds), _by_metric([(of.by_role, of.times) for of in kinds]))


def _by_metric(ranks: Iterable[tuple[RoleCosts, int]]) -> dict[tuple[str, str], Counter[str]]:
    """Return the costs of ranks, each with their number, by stage and metric, then by role."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for costs, times in ranks:
        for (stage, role, metric), cost in costs.items():
            found.setdefault((stage, metric), Counter())[role] += times * cost
    return found


def _sum(*parts: Mapping[str, int | Fraction]) -> _Named:
    """Return the sum of copies, cause by cause."""
    found = _Named(int)
    for cause, amount in (item for part in parts for item in part.items()):
        found[cause] += amount
    return found


def _split_parts(run: Workload, one: Ledger, ranks: Sequence[RoleCosts]) -> frozenset[str]:
    """Return the parts of a decoder that ranks along ``tp`` divide, by the collectives behind them.

    Plans of transformers divide all parts, all but the attention, or the output projection alone. Of others, a mixture
    may add routed and shared experts before one sum.
    """
    found, paid = set[str](), Counter[tuple[str, str]]()
    if run.mesh.tp == 1:
        return frozenset()
    for (_, role, metric), cost in (item for costs in ranks for item in costs.items()):
        if metric == PAYLOAD:
            module, _, kind = role.partition(" ")
            paid[module, kind] += cost
    plan, mlp = str(run.inputs.get(PLAN, "")), f"{_LAYER}.mlp"
    for role, part in (
        ("text.embedding", "embedding"), (f"{_CORE}.out", "attention"), (f"{mlp}.down", "mlp"),
        (f"{_LAYER}.shared.down", "shared"), (mlp, "shared"),
    ):  # fmt: skip
        if paid[role, "all_reduce"] or paid[role, "reduce_scatter"]:
            found.add(part)
    if paid["lm_head", "all_gather"]:
        found.add("head")
    if not plan:
        return frozenset(found | ({"mlp", "shared", "experts"} if "embedding" in found else set()))
    paths = {f"{n.module}.gate_up_proj" for n in one.nodes if n.role == _MIXTURE}
    layouts = [pair.rsplit(": ", 1)[0] for pair in plan.split("; ") if not pair.endswith(": replicated")]
    if plan == "vllm" or any(fnmatchcase(path, x.replace("*", "?*")) for x in layouts for path in paths):
        found.add("experts")
    return frozenset(found)


def _without(run: Workload, *names: str) -> Workload:
    return replace(run, inputs={name: value for name, value in run.inputs.items() if name not in (*names, RANK)})


def _part_of(role: str) -> str | None:
    """Return the part of a decoder to which a module belongs; ``None`` if a plan never divides it."""
    leaf = role.rpartition(".")[2]
    if "norm" in leaf:
        return None
    if role in ("text.embedding", "lm_head"):
        return "embedding" if role != "lm_head" else "head"
    if role.startswith(f"{_LAYER}."):
        part = role.split(".")[2]
        return part if part in ("attention", "mlp", "experts", "shared") else None
    return None


def _whole_name(role: str) -> str:
    if not role.startswith(("text.", "lm_head")):
        return _TOWERS
    leaf = role.rpartition(".")[2]
    return _NORMS if "norm" in leaf else _ROUTERS if leaf == "router" else _TABLES
