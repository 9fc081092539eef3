"""Bound the time of collectives between the devices of a mesh, from the bandwidths of their links.

A collective has a payload M, the bytes of its full tensor, and a group of n ranks. However it is done, some rank of a
group within a node sends or receives at least

    all_reduce                    M            what the others contribute, or their sum
    all_gather, reduce_scatter    (n - 1)/n M
    all_to_all                    (n - 1)/n M  of its own send buffer; of a given routing, what leaves the rank
    send                          M

through its links. A ring sends 2 (n - 1)/n M in an all-reduce; switches that add up on the way need only M. A group
over several nodes, with g ranks in each, has both its links and its part of the network. It takes at least as long as
the same bytes through both at once, and as what must enter or leave a node through the network of its g devices:

    all_reduce                    M            for all g
    all_gather, reduce_scatter    (n - g)/n M  for all g
    all_to_all                    (n - g)/n M  for each
    send to another node          M            for each

No latency is included, so small messages take much longer. Sources: Patarasuk and Yuan 2009; Chan et al. 2007.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import floor
from typing import TYPE_CHECKING, Final, Literal

from costproof.estimate.arithmetic import CallTerm, FormulaSum, MetricTerm
from costproof.estimate.hardware import Device, machine
from costproof.ledger.baseline import Folded
from costproof.ledger.errors import BadInput
from costproof.ledger.mesh import DISPATCH, Mesh
from costproof.ledger.metrics import UNFUSED
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.workload import Workload

if TYPE_CHECKING:
    from costproof.estimate.roofline import StageBound

LinkSide = Literal["compute", "memory", "links"]
_MANY: Final = re.compile(r"([0-9]{1,6})x ?(?:([0-9]{1,6})x ?)?(?=\D)(.+)")
LARGEST: Final = 100_000
"""Maximum number of devices that ``--on`` accepts."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a run, as ``--on`` names them."""

    device: Device
    count: int | None = None
    """Number of devices; ``None`` for as many as the mesh of the run has ranks."""
    node: int | None = None
    """Number of devices per node, if ``--on`` states it."""

    @property
    def name(self) -> str:
        """Return the devices as ``--on`` names them."""
        counted = "" if self.count is None else f"{self.count // (self.node or 1) if self.node else self.count}x"
        return f"{counted}{'' if self.node is None else f'{self.node}x'}{self.device.name}"

    @property
    def node_size(self) -> int | None:
        """Return the number of devices per node; ``None`` if neither ``--on`` nor the device file states it."""
        return self.node if self.node is not None or self.device.node is None else self.device.node.value

    def check(self, mesh: Mesh) -> None:
        """Check that a mesh has as many ranks as there are devices.

        Raises:
            BadInput: it has not.
        """
        if self.count is not None and mesh.world != self.count:
            what = "the mesh has another number of ranks than there are devices"
            got = f"{mesh.world} ({mesh.text})" if not mesh.one else "1, for a run without a mesh"
            fix = f"--tp {self.count}, or another mesh of {self.count} ranks; --on {self.device.name} for one device"
            raise BadInput(what, where="--on", expected=f"{self.count} ranks", got=got, fix=fix)


def devices_in(on: str | os.PathLike[str] | Device) -> Devices:
    """Return the devices for a name: ``h100-sxm``, ``8xh100-sxm``, ``2x8xh100-sxm`` (two nodes of eight).

    Raises:
        BadInput: there is no such device, or no number of them.
    """
    if isinstance(on, Device):
        return Devices(on)
    found = _MANY.fullmatch(os.fspath(on))
    if found is None:
        return Devices(machine(on))
    first, second = int(found[1]), None if found[2] is None else int(found[2])
    count = first if second is None else first * second
    if not 1 <= count <= LARGEST or second == 0:
        raise BadInput("too many or 0 devices", where="--on", expected=f"1 to {LARGEST:,}", got=os.fspath(on)[:60])
    return Devices(machine(found[3]), count, second)


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bandwidths between the devices of a mesh, in bytes per second of one device in one direction."""

    interconnect: int
    """Bandwidth to the other devices of a node."""
    node: int | None
    """Number of devices per node; ``None`` if all devices are in one node."""
    network: int | None
    """Bandwidth to other nodes; ``None`` if unknown."""

    def per_byte(self, kind: str, group: tuple[int, ...]) -> Fraction | None:
        """Return the least seconds of a collective per byte of payload; ``None`` if unknown.

        Args:
            kind: of the collective, as :mod:`costproof.ledger.mesh` lists them.
            group: its ranks.
        """
        n = len(group)
        others = Fraction(n - 1, n)
        whole = {"all_reduce": Fraction(1 if n > 1 else 0), "send": Fraction(1)}
        bytes_of_rank = whole.get(kind, others)
        inside = Counter(rank // self.node if self.node else 0 for rank in group)
        if len(inside) == 1 or (kind == "send" and len(inside) < n):  # of these, some stay within a node
            return bytes_of_rank / self.interconnect
        if self.network is None:
            return None
        most = max(inside.values())  # of uneven parts, the largest has the most network
        crossing = {"all_reduce": Fraction(1, most), "send": Fraction(1)}
        outside = Fraction(n - most, n) if kind == "all_to_all" else Fraction(n - most, n * most)
        return max(crossing.get(kind, outside) / self.network, bytes_of_rank / (self.interconnect + self.network))

    def per_sent_byte(self, group: tuple[int, ...], rank: int) -> Fraction | None:
        """Return the least seconds per byte that a rank sends to its group, for any distribution of the bytes.

        In a group over several nodes it has its part of the network, and its links if others are in its node.
        """
        here = sum(1 for other in group if not self.node or other // self.node == rank // self.node)
        if here == len(group):
            return Fraction(1, self.interconnect)
        if self.network is None:
            return None
        return Fraction(1, self.network + (self.interconnect if here > 1 else 0))


def link_rates(devices: Devices, mesh: Mesh) -> tuple[LinkRates | None, str]:
    """Return the bandwidths between the ranks of a mesh, with a note why they are unknown or what is assumed."""
    device, node = devices.device, devices.node_size
    if device.interconnect is None:
        return None, f"no time has the bytes that ranks send: no source gives the rate of the links of {device.name}"
    network = None if device.network is None else device.network.value
    if node is not None and mesh.world > node and network is None:
        why = f"no source gives the rate between nodes of {node} {device.name}"
        return None, f"no time has the bytes that ranks send: {why}"
    alone = f"all {mesh.world} {device.name} are taken as one node, since no source gives its size"
    said = alone if node is None and mesh.world > 1 else ""
    return LinkRates(device.interconnect.value, node, network), said


@dataclass(frozen=True, slots=True)
class CollectiveBound:
    """Lower bound of the time of equal collectives of a rank: one kind, in one model part of a stage."""

    stage: str
    part: str
    kind: str
    ranks: int
    """Number of ranks in the group."""
    nodes: int
    """Number of nodes over which the group is spread."""
    messages: int
    payload_bytes: int
    sent_bytes: int
    """Bytes that the rank sends with the ring algorithm, as reports count them."""
    seconds: str
    """Least time, whatever the algorithm."""


@dataclass(frozen=True, slots=True)
class StageLinks:
    """Time bounds of a stage, or of the whole run, including communication."""

    id: str
    sent_bytes: int
    seconds: str
    """Lower bound of all collectives, one after another."""
    exposed_s: str | None
    """Lower bound without overlap: the roof time of the modules plus the time of the collectives."""
    overlapped_s: str | None
    """Lower bound with full overlap: the longer of the modules' roof time and the collectives' time."""
    bound: LinkSide | None
    """The largest of three times: of all matrix products, all memory traffic, or all collectives."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Time bounds of the whole run on a set of ranks with equal bounds."""

    ranks: tuple[int, ...]
    roof_s: str | None
    exposed_s: str | None
    overlapped_s: str | None


@dataclass(frozen=True, slots=True)
class LinkBounds:
    """Time bounds of a run on several devices, including communication."""

    count: int
    """Number of ranks."""
    node: int | None
    """Number of devices per node; ``None`` if all devices are in one node."""
    interconnect: int
    """Bytes per second of one device to the other devices of its node, in one direction."""
    network: int | None
    """Bytes per second of one device to other nodes; ``None`` if unknown or not used."""
    collectives: tuple[CollectiveBound, ...]
    stages: tuple[StageLinks, ...]
    """Time bounds of the counted rank by stage; the last entry is the whole run."""
    ranks: tuple[RankTimes, ...]
    """Time bounds of all ranks, slowest first."""

    def rates(self) -> dict[tuple[str, str, str], Fraction]:
        """Return seconds per byte of payload, by (stage, model part, kind of collective)."""
        moved = (c for c in self.collectives if c.payload_bytes)
        return {(c.stage, c.part, c.kind): Fraction(c.seconds) / c.payload_bytes for c in moved}


def collective_bounds(
    folded: Folded, rates: LinkRates, workload: Workload, axis_of: Callable[[str, str], str]
) -> Iterator[CollectiveBound]:
    """Yield the time bounds of all collectives of the counted rank.

    Args:
        folded: the counts of the rank.
        rates: of the links.
        workload: the run, with its mesh and the rank.
        axis_of: part of the model and kind of a collective -> its group of the mesh.
    """
    for stage in folded.stages:
        for part, kinds in sorted(folded.rows.get(stage, {}).items()):
            for kind, costs in sorted(kinds.items()):
                if not costs.get("messages"):
                    continue
                group = workload.mesh.ranks_of(kind, axis_of(part, kind), workload.rank)
                rate, payload = rates.per_byte(kind, group), costs["comm_payload_bytes"] or 0
                moved = payload
                if kind == "all_to_all" and DISPATCH in workload.inputs:
                    rate, moved = rates.per_sent_byte(group, workload.rank), costs["comm_bytes"] or 0
                nodes = len({rank // rates.node if rates.node else 0 for rank in group})
                assert rate is not None  # link_rates has asked for all of a mesh
                yield CollectiveBound(
                    stage, part, kind, len(group), nodes, costs["messages"] or 0, payload, costs["comm_bytes"] or 0,
                    str(moved * rate),
                )  # fmt: skip


EXPERT_PRODUCTS: Final = "expert_gemm"
"""Operator kind of the products of routed experts in formulas."""


def by_rows(metric: str) -> bool:
    """Return whether a metric of routed experts grows with the number of tokens that a rank's experts process."""
    return metric in ("flops", "params_active", "input_bytes", "output_bytes") or metric.endswith("_flops")


def mean_of_experts(folded: Folded, ranks: int) -> Folded:
    """Return a rank's counts with an equal share of the routed experts' tokens, a lower bound for the slowest rank."""
    return share_of_experts(folded, dict.fromkeys(folded.rows, Fraction(1, ranks)))


def share_of_experts(folded: Folded, shares: Mapping[str, Fraction]) -> Folded:
    """Return a rank's counts with its share of the tokens of routed experts, by stage.

    Each of the ranks is given all rows and skips those of experts of others, so how many it multiplies is data; all
    together multiply each once. FLOPs and activations of the experts are multiplied and rounded down, and so are the
    parameters that one token meets. The weights read stay those of min(E / ranks, T k) experts.
    """

    def share(costs: dict[str, int | None], part: Fraction) -> dict[str, int | None]:
        few: dict[str, int | None] = {m: floor(n * part) for m, n in costs.items() if n is not None and by_rows(m)}
        read, unfused = costs.get("weight_read_bytes", 0), costs.get(UNFUSED)
        if unfused is not None and read is not None:
            few[UNFUSED] = read + floor((unfused - read) * part)
        return {**costs, **few}

    rows = {}
    for stage, parts in folded.rows.items():
        experts = [part for part, kinds in parts.items() if EXPERT_PRODUCTS in kinds]
        rows[stage] = {
            part: {kind: share(costs, shares.get(stage, Fraction(1))) for kind, costs in kinds.items()}
            if any(part == outer or part.startswith(f"{outer}.") for outer in experts)
            else kinds
            for part, kinds in parts.items()
        }
    return replace(folded, rows=rows)


def with_links(stage: StageBound, sent: tuple[CollectiveBound, ...]) -> StageLinks:
    """Return the time bounds of a stage including its collectives; of the whole run if ``stage`` is empty."""
    here = [c for c in sent if stage.id in ("", c.stage)]
    links = sum((Fraction(c.seconds) for c in here), Fraction(0))
    work = stage.modules
    if work.seconds is None or work.compute_s is None or work.memory_s is None:
        return StageLinks(stage.id, sum(c.sent_bytes for c in here), str(links), None, None, None)
    roofed, longest = Fraction(work.seconds), max(Fraction(work.compute_s), Fraction(work.memory_s))
    return StageLinks(
        stage.id, sum(c.sent_bytes for c in here), str(links), str(roofed + links), str(max(roofed, links)),
        "links" if links > longest else work.bound,
    )  # fmt: skip


def scaled(terms: FormulaSum, factor: int) -> FormulaSum:
    """Return a sum of formulas multiplied by a number."""
    return tuple(replace(t, factor=t.factor * factor) if isinstance(t, MetricTerm) else t for t in terms)


def mean_terms(terms: FormulaSum, ledger: Ledger, shared: int) -> FormulaSum:
    """Return the formula terms multiplied by ``shared``, except those that grow with the rows of routed experts."""
    outer = {node.role for node in ledger.nodes if node.kind == EXPERT_PRODUCTS}

    def routed(node: CostNode) -> bool:
        return any(node.role == role or node.role.startswith(f"{role}.") for role in outer)

    found: list[MetricTerm | CallTerm] = []
    for t in terms:
        if not isinstance(t, MetricTerm) or not by_rows(t.metric):
            found += scaled((t,), shared)
            continue
        found.append(replace(t, nodes=partial(_both, t.nodes, routed)))
        found.append(replace(t, nodes=partial(_but_not, t.nodes, routed), factor=t.factor * shared))
    return tuple(found)


def _both(one: Callable[[CostNode], bool], other: Callable[[CostNode], bool], node: CostNode) -> bool:
    return one(node) and other(node)


def _but_not(one: Callable[[CostNode], bool], other: Callable[[CostNode], bool], node: CostNode) -> bool:
    return one(node) and not other(node)
