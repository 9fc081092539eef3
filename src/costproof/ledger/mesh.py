"""Define the mesh of devices of a parallel run, the coordinates of a rank, and the costs of all ranks.

A collective has a payload M, the bytes of its full tensor, and a group of n ranks. By the ring algorithm a rank sends

    all_reduce                    2 (n - 1) chunks of M
    all_gather, reduce_scatter      (n - 1) chunks of M
    all_to_all                      (n - 1) chunks of its own send buffer
    send                            M

where a chunk has ``ceil(elements / n)`` elements. That is a convention: libraries choose other algorithms for some
sizes, and may cut chunks that n does not divide in another way. Each source computes these bytes by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from fractions import Fraction
from typing import Final, Literal, Self, cast

from costproof.ledger.errors import BadInput

RANK: Final = "rank"
"""Workload input with the counted rank, 0 by default."""
CP_PLAN: Final = "cp_plan"
"""Workload input with the way in which ranks along ``cp`` split a sequence, ``zigzag`` by default."""
PLAN: Final = "plan"
"""Workload input with the tensor-parallel plan; by default the plan of the transformers class."""
DISPATCH: Final = "dispatch"
"""Workload input with the method of sending tokens to experts of other ranks, if not by all-gather."""
ALL_GATHER: Final = "all-gather"
"""Default method of dispatch, in which every rank gathers all tokens."""
PAIRS: Final = "pairs"
"""Workload input with the token-expert pairs that ranks send each other, read by :func:`pairs_of`."""
EP_BATCHES: Final = "ep/tp"
"""Name of the group of ranks that share experts and have different batches (:meth:`Mesh.group`)."""
FSDP_CP: Final = "fsdp*cp"
"""Name of the group of ranks along ``fsdp`` and ``cp``, which shard the same parameters (:meth:`Mesh.group`)."""
ON_ONE_DEVICE: Final = {
    "tp": "1", "ep": "1", "text_vocab_rank": "text_vocab", "text_pairs_sent": "0", "text_pairs_got": "0",
    "text_experts_read": "0",
    "ep_sequences": "B", "ep_next": "B", "slice_tokens": "B*S",
    "cp": "1", "cp_place": "1", "cp_tokens": "S", "fsdp": "1", "fsdp_rank": "0",
}  # fmt: skip
"""Values on one device of the symbols in a rank's formulas, by symbol."""
_OF_LAYER: Final = "text_pairs_sent_", "text_pairs_got_", "text_experts_read_"
"""Beginnings of the symbols of a layer whose tokens are routed otherwise than those of other layers."""


def on_one_device(names: Iterable[str]) -> dict[str, str]:
    """Return :data:`ON_ONE_DEVICE` with the symbols of single layers among some names, and the tokens of their call."""
    known = {*names}
    step = {} if "S" in known else {"slice_tokens": "B"}
    return ON_ONE_DEVICE | step | {name: "0" for name in known if name.startswith(_OF_LAYER)}


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Position of a rank in a mesh, as one index per axis."""

    tp: int
    ep: int
    pp: int
    dp: int
    cp: int
    fsdp: int


@dataclass(frozen=True, slots=True)
class Mesh:
    """Number of devices along each axis of a parallel run; all are 1 for one device.

    Ranks are numbered with ``tp`` fastest, then ``cp``, ``fsdp``, ``dp`` and ``pp``. Expert parallelism adds no
    devices: groups of ``ep`` consecutive ranks of those along ``tp``, ``cp`` and ``dp`` share the experts of a layer.
    """

    tp: int = 1
    """Number of ranks that split the weights of each layer (tensor parallelism)."""
    ep: int = 1
    """Number of ranks that split the experts of each layer (expert parallelism)."""
    pp: int = 1
    """Number of ranks that split the layers (pipeline parallelism)."""
    dp: int = 1
    """Number of ranks that split the batch, each with a full copy of the weights (data parallelism)."""
    cp: int = 1
    """Number of ranks that split the tokens of a sequence (context parallelism)."""
    fsdp: int = 1
    """Number of ranks that split the batch and shard each parameter, which is gathered to run a layer (FSDP).

    Ranks along ``cp`` then store parts too: parameters are cut over both axes, flattened, as torchtitan does
    (``parallel_dims``, mesh ``fsdp`` of ``dp_shard * cp`` ranks).
    """

    @classmethod
    def of(cls, inputs: Mapping[str, object]) -> Self:
        """Return the mesh given by the inputs of a workload."""
        return cls(**{axis: cast(int, inputs[axis]) for axis in AXES if axis in inputs})

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return self.tp * self.pp * self.dp * self.cp * self.fsdp

    @property
    def one(self) -> bool:
        """Return whether the mesh is a single device."""
        return astuple(self) == (1,) * len(AXES)

    @property
    def text(self) -> str:
        """Return the axes with more than one rank as text: ``tp 8, dp 2``."""
        return ", ".join(f"{axis} {n}" for axis in AXES if (n := getattr(self, axis)) > 1)

    @property
    def stored_parts(self) -> int:
        """Return the number of shards of each parameter; 1 if every rank stores whole parameters."""
        return self.fsdp * self.cp if self.fsdp > 1 else 1

    def stored_part(self, rank: int) -> int:
        """Return the index of the parameter shard that a rank stores; 0 if it stores whole parameters."""
        at = self.coordinates(rank)
        return at.fsdp * self.cp + at.cp if self.fsdp > 1 else 0

    @property
    def batches(self) -> int:
        """Return the number of batches that the experts of an ``ep`` group process; 1 if ``ep`` is at most ``tp``."""
        return max(1, self.ep // self.tp)

    def coordinates(self, rank: int) -> Coordinates:
        """Return the coordinates of a rank."""
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        rest, fsdp = divmod(rest, self.fsdp)
        pp, dp = divmod(rest, self.dp)
        return Coordinates(tp, rank % (self.world // self.pp) % self.ep, pp, dp, cp, fsdp)

    def group(self, axis: str, rank: int) -> tuple[int, ...]:
        """Return all ranks in a rank's group along an axis, in ascending order.

        Args:
            axis: of the mesh; ``ep/tp``: ranks along ``ep`` with equal indices along ``tp``, one for each batch; or
                ``fsdp*cp``: ranks along both, which store parts of the same parameters.
        """
        if axis == FSDP_CP:
            first = rank - self.tp * self.stored_part(rank)
            return tuple(first + self.tp * i for i in range(self.stored_parts))
        if axis in ("ep", EP_BATCHES):
            first = rank - self.coordinates(rank).ep
            every = tuple(range(first, first + self.ep))
            return every if axis == "ep" else every[rank % self.tp :: self.tp]
        step = 1
        for inner in ("tp", "cp", "fsdp", "dp", "pp"):
            if inner == axis:
                break
            step *= getattr(self, inner)
        first = rank - step * int(getattr(self.coordinates(rank), axis))
        return tuple(first + step * i for i in range(getattr(self, axis)))

    def ranks_of(self, kind: str, axis: str, rank: int) -> tuple[int, ...]:
        """Return the ranks that take part in a collective with a rank: its group, or for ``send`` both ends."""
        ranks = self.group(axis, rank)
        if kind != "send":
            return ranks
        at = ranks.index(rank)
        return ranks[at], ranks[(at + 1) % len(ranks)]

    def problems(self, rank: int = 0, *, more: Collection[str] = ()) -> list[BadInput]:
        """Return an error for each axis or rank that is out of range or not supported.

        Args:
            more: axes that a target counts besides ``tp``, ``ep`` and ``dp``.
        """
        found = [
            BadInput("the mesh needs a rank on each axis", where=f"--{axis}", expected="at least 1", got=size)
            for axis in AXES
            if (size := getattr(self, axis)) < 1
        ]
        if found:
            return found
        found += [
            BadInput("this axis is not counted yet", where=f"--{axis}", expected="1", got=getattr(self, axis))
            for axis in ("pp", "cp", "fsdp")
            if getattr(self, axis) > 1 and axis not in more
        ]
        if self.ep > 1 and (self.ep % self.tp or (self.tp * self.cp * self.dp) % self.ep):
            what = "the ranks that share the experts must be whole groups of those that share weights and batch"
            expected = f"a multiple of tp {self.tp} that divides tp x cp x dp = {self.tp * self.cp * self.dp}"
            found.append(BadInput(what, where="--ep", expected=expected, got=self.ep))
        if not 0 <= rank < self.world:
            expected = f"0 to {self.world - 1}" if self.world > 1 else "0, since there is one device"
            found.append(BadInput("no such rank", where="--rank", expected=expected, got=rank))
        return found


AXES: Final[tuple[str, ...]] = tuple(f.name for f in fields(Mesh))
"""Mesh axes in the order of reports; each is also a workload input."""


def ambiguous_axes(axes: Mapping[str, object]) -> list[BadInput]:
    """Return an error if the named axes contradict each other: ``fsdp`` 1 with several ranks along ``cp``.

    torchtitan stores parts along ``cp`` then (``dp_shard * cp`` ranks); whole parameters have no ``fsdp``.
    """
    if axes.get("fsdp") != 1 or axes.get("cp", 1) == 1:
        return []
    what = "one rank along fsdp has whole parameters here, and parts along cp in torchtitan: neither is assumed"
    expected = "--fsdp of 2 or more, whose parts ranks along cp store too, or none for whole parameters"
    return [BadInput(what, where="--fsdp, --cp", expected=expected, got=f"fsdp 1, cp {axes['cp']}")]


def shard(size: int, ranks: int, index: int) -> tuple[int, int]:
    """Return (start, stop) of a rank's chunk of a dimension, in chunks of ``ceil(size / ranks)``.

    The last chunks may be shorter or empty, as those of torch's ``Shard``.
    """
    chunk = -(-size // ranks)
    return min(index * chunk, size), min((index + 1) * chunk, size)


def stage_layers(layers: int, stages: int, index: int) -> range:
    """Return the layers of a pipeline stage; stages before the last get one extra layer each if layers are left over.

    The last stage also has the output projection (vLLM, ``get_pp_indices``).
    """
    size, more = divmod(layers, stages)
    first = stages - 1 - more
    start = index * size + min(max(0, index - first), more)
    return range(start, start + size + (first <= index < stages - 1))


Order = Literal["gpipe", "1f1b", "interleaved"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Order in which the stages of a pipeline process the microbatches of a pass over the model.

    GPipe runs all forwards and then all backwards; 1F1B alternates them. In both a stage waits for p - 1 microbatches.
    Interleaved, each stage has v parts of the model and waits for p - 1 parts of a microbatch (Huang et al. 2019,
    GPipe; Narayanan et al. 2021, Megatron-LM, section 2.2).
    """

    order: Order
    stages: int
    microbatches: int
    parts: int = 1
    """Number of model parts on each stage, above 1 only for the interleaved schedule."""

    @classmethod
    def of(cls, text: str, stages: int, microbatches: int, layers: int | None = None) -> Self:
        """Return the schedule with this name: ``gpipe``, ``1f1b`` or ``interleaved:2``.

        Args:
            layers: of the model; ``None`` if unknown. Parts of an interleaved schedule have equally many of them, as
                in Megatron-LM (``num_layers_per_virtual_pipeline_stage``).

        Raises:
            BadInput: there is none, or the stages cannot follow it.
        """
        order, _, parts = text.partition(":")
        if stages < 2:
            raise BadInput("pipelining needs two stages", where="--microbatches, --schedule", fix="name stages: pp 4")
        if microbatches < 1:
            raise BadInput("--microbatches is below 1", where="--microbatches", expected="1 or more", got=microbatches)
        if order in ("gpipe", "1f1b") and not parts:
            return cls(cast(Order, order), stages, microbatches)
        if order != "interleaved" or not parts.isdecimal() or len(parts) > 3 or int(parts) < 2:
            expected = "gpipe, 1f1b, or interleaved:V with V parts of the model on each stage, 2 to 999"
            raise BadInput("there is no such pipeline schedule", where="--schedule", expected=expected, got=text)
        if microbatches % stages:
            what, expected = "interleaved stages take as many microbatches in turn as there are stages", f"of {stages}"
            raise BadInput(what, where="--microbatches", expected=f"a multiple {expected}", got=microbatches)
        every = stages * int(parts)
        if layers is not None and layers % every:
            what, expected = "parts of a pipeline have equally many layers", f"stages x V that divides {layers} layers"
            if every > layers:
                what, expected = "there are fewer layers than parts of a pipeline", f"at most {layers} layers"
            raise BadInput(what, where="--schedule", expected=expected, got=f"{stages} x {int(parts)} = {every} parts")
        return cls("interleaved", stages, microbatches, int(parts))

    @property
    def idle(self) -> Fraction:
        """Return the share of a pass in which a stage is idle, if all parts of all microbatches take equally long.

        That is (p - 1) / (v m + p - 1) for p stages, m microbatches and v parts.
        """
        return Fraction(self.stages - 1, self.parts * self.microbatches + self.stages - 1)

    def sends(self, stage: int) -> int:
        """Return how often a stage sends hidden states in the forwards of a pass; the last model part sends none."""
        return self.microbatches * (self.parts - (stage == self.stages - 1))


def own_batch(batch: int, mesh: Mesh, rank: int) -> int:
    """Return the number of sequences of a batch that a rank runs; the first ranks get one more if it is uneven.

    Ranks along ``dp`` and ``fsdp`` share it. It is a quotient without a branch, which can be solved for the batch.
    """
    at, parts = mesh.coordinates(rank), mesh.dp * mesh.fsdp
    return (batch + parts - 1 - at.dp * mesh.fsdp - at.fsdp) // parts


def pairs_of(inputs: Mapping[str, object]) -> tuple[tuple[int, ...], ...]:
    """Return a table with the token-expert pairs that each rank sends to each rank of its ``ep`` group.

    They are those of one call, in every layer; ``6,2;3,5`` has two ranks, and so has ``6+2;3+5``. Empty if the workload
    names no routing.

    Raises:
        BadInput: the text is not such a table.
    """
    text = str(inputs.get(PAIRS, ""))
    rows = [row.replace("+", ",").split(",") for row in text.split(";")] if text else []
    if not all(n.strip().isdecimal() for row in rows for n in row):
        expected = "numbers, with commas in a row and semicolons between rows: 6,2;3,5; or a routing file"
        raise BadInput("these are not numbers of pairs", where="--pairs", expected=expected, got=text[:80])
    return tuple(tuple(map(int, row)) for row in rows)


def of_mesh(name: str) -> bool:
    """Return whether a setting concerns runs on several devices."""
    return name in (*AXES, RANK, PLAN, DISPATCH, PAIRS, CP_PLAN)


def no_such_setting(name: str, where: str, known: Collection[str], fix: str | None = None) -> BadInput:
    """Return the error for an unknown setting; for a mesh setting, that ranks of the model are not counted."""
    if of_mesh(name):
        what = "ranks of this model are not counted: no plan here splits its layers over devices"
        return BadInput(what, where=where, expected="one device", fix="docs/devices.md names the families with a plan")
    return BadInput("no such setting", where=where, expected="one of " + ", ".join(known), fix=fix)


def one_device(metric: str, *, where: str) -> BadInput:
    """Return the error that a communication metric does not exist in a run on one device."""
    return BadInput("one device has no collectives", where=where, got=metric, fix="name a mesh, such as tp 8")


@dataclass(frozen=True, slots=True)
class RankCosts:
    """Costs of a set of ranks with equal costs."""

    ranks: tuple[int, ...]
    stages: dict[str, dict[str, int]]
    """Costs of each rank by stage and metric; costs of a whole rank are under the empty stage name."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """Equal collectives of the counted rank: of one kind, in modules of one pattern, in one call of a stage."""

    stage: str
    invocation: str
    kind: str
    """One of ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` and ``send``."""
    group: str
    """Group of ranks: an axis of the mesh, ``ep/tp`` or ``fsdp*cp`` (:meth:`Mesh.group`)."""
    ranks: tuple[int, ...]
    """Ranks of the group, including the counted one."""
    dtype: str
    """Dtype of the sent data; several dtypes separated by commas."""
    count: int
    bytes: int
    """Bytes of the full tensors in all of these collectives."""
    sent_bytes: int
    """Bytes that the rank sends in all of these collectives."""
    module: str
    """Path of the module with ``*`` for numbers."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Work or memory that several ranks duplicate, so that their sum exceeds one device's, with the reason."""

    what: str
    stage: str
    """Stage of duplicated work; empty for duplicated memory."""
    metric: str
    amount: int
    """Excess of all ranks' costs over one device's that this duplication causes."""
    bytes: int | None
    """The amount if its unit is bytes, else ``None`` (0 in older files)."""


def bytes_of(metric: str, amount: int) -> int | None:
    """Return an amount of a metric in bytes; ``None`` if the metric has another unit."""
    return amount if metric.endswith("_bytes") else None


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Data that the counted rank exchanges with the experts of other ranks under one dispatch method."""

    stage: str
    invocation: str
    form: str
    """Dispatch method: ``all-gather``, ``all-to-all``, ``low-latency``, ``by-rank`` or ``by-node``."""
    routing: str
    """``any`` if the numbers hold for every routing; ``bound`` for the maximum, ``uniform`` for the mean.

    ``given`` for the exact numbers of a routing file.
    """
    copies: str
    """Copies of a token per layer that leave the token's rank, or its node, as an exact fraction: ``1023/256``."""
    sent_bytes: int
    """Bytes that the rank sends in all layers and calls, to dispatch and to combine, rounded up."""
    fp8_bytes: int
    """Bytes sent if tokens are dispatched in fp8, with a scale per 128 elements, and combined in the run's dtype."""
    expert_flops: int
    """FLOPs of the rank's routed experts, rounded up."""
    received_bytes: int | None = None
    """Bytes that the rank receives, dispatched and combined, rounded up; ``None`` in older files."""
    sent_to: tuple[int, ...] = ()
    """Copies of the rank's tokens to each rank of its ``ep`` group, or node, its own included; of a given routing."""
    node: int | None = None
    """Number of ranks per node of ``by-node``: that of the named device, or of one that its note names."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """A run on several devices: its mesh, the costs of each rank, and costs that ranks duplicate.

    For each metric of :attr:`one_device` the costs of all ranks are those of one device and the duplicates, exactly.
    """

    mesh: Mesh
    rank: int
    """The rank that the sources count."""
    plan: str
    """Origin of the plan by which modules are split over ranks."""
    ranks: tuple[RankCosts, ...]
    """Costs of all ranks, one entry for ranks with equal costs."""
    collectives: tuple[Collectives, ...]
    one_device: dict[str, dict[str, int]]
    """Costs of the same batch on one device, by stage and metric; device-wide costs are under the empty stage name."""
    duplicates: tuple[Duplicate, ...]
    dispatches: tuple[Dispatch, ...] = ()
    """Exchanged data under each dispatch method; the other costs assume ``all-gather``."""
    mixtures: dict[str, int] = field(default_factory=dict)
    """Sizes of the layers with experts that dispatch methods depend on, by name; empty without dispatches."""
    nodes_of: str = ""
    """Devices whose nodes dispatch between nodes is counted with; empty without dispatches."""

    @property
    def summed(self) -> tuple[str, ...]:
        """Return the metrics of :attr:`one_device`, whose sums over ranks the duplicates explain."""
        return tuple(dict.fromkeys(metric for costs in self.one_device.values() for metric in costs))

    def extremes(self, stage: str, metric: str) -> tuple[tuple[int, tuple[int, ...]], tuple[int, tuple[int, ...]]]:
        """Return (smallest cost, its ranks) and (largest cost, its ranks) of a metric in a stage."""
        found: dict[int, list[int]] = {}
        for row in self.ranks:
            if metric in row.stages.get(stage, {}):
                found.setdefault(row.stages[stage][metric], []).extend(row.ranks)
        least, most = min(found), max(found)
        return (least, tuple(sorted(found[least]))), (most, tuple(sorted(found[most])))

    def problems(self) -> list[BadInput]:
        """Return an error for each metric whose sum over ranks is not one device's cost plus the duplicates.

        A collective runs among several ranks, the counted one among them, that differ along its axis of the mesh only.
        """
        found = []
        for stage, costs in self.one_device.items():
            for metric, one in costs.items():
                total = sum(len(row.ranks) * row.stages.get(stage, {}).get(metric, 0) for row in self.ranks)
                copies = sum(d.amount for d in self.duplicates if (d.stage, d.metric) == (stage, metric))
                if total != one + copies:
                    what = "the ranks do not sum to one device and the named copies"
                    where = f"$.parallel, {stage or 'what ranks hold'}: {metric}"
                    found.append(BadInput(what, where=where, expected=one + copies, got=total))
        counted = sorted(rank for row in self.ranks for rank in row.ranks)
        if counted != list(range(self.mesh.world)):
            found.append(BadInput("each rank must be counted once", where="$.parallel.ranks", got=str(counted)[:80]))
        groups = {f"collectives[{i}]": (c.group, c.ranks) for i, c in enumerate(self.collectives)}
        axes = (axis for axis in AXES if getattr(self.mesh, axis) > 1) if 0 <= self.rank < self.mesh.world else ()
        groups |= {axis: (axis, self.mesh.group(axis, self.rank)) for axis in axes}
        for place, (axis, ranks) in groups.items():
            if not self._is_group(axis, ranks):
                what = "these ranks are not a group of the counted one"
                expected = f"several, with {self.rank}, that differ along {axis} only"
                found.append(BadInput(what, where=f"$.parallel.{place}", expected=expected, got=str(list(ranks))[:80]))
        for i, d in enumerate(self.duplicates):
            size = bytes_of(d.metric, d.amount)
            if d.bytes != size and (size is not None or d.bytes != 0):
                what = "a copy has as many bytes as its amount if its metric is in bytes, and else none"
                found.append(BadInput(what, where=f"$.parallel.duplicates[{i}].bytes", expected=size, got=d.bytes))
        return found

    def _is_group(self, axis: str, among: tuple[int, ...]) -> bool:
        ranks = {*among}
        if len(ranks) < 2 or self.rank not in ranks or not ranks <= {*range(self.mesh.world)}:
            return False
        if axis in ("ep", EP_BATCHES):  # which lie across tp, cp and dp
            return len({self.mesh.coordinates(rank).ep for rank in ranks}) == len(ranks)
        axes = ("fsdp", "cp") if axis == FSDP_CP else (axis,)
        if not {*axes} <= {*AXES}:
            return False
        return len({replace(self.mesh.coordinates(r), **dict.fromkeys(axes, 0), ep=0) for r in ranks}) == 1
