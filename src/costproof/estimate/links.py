"""Bound the time in which the devices of a mesh exchange data, from the figures of their links.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal

from costproof.estimate.hardware import Device, machine
from costproof.ledger.baseline import Folded
from costproof.ledger.errors import BadInput
from costproof.ledger.mesh import PAIRS, Mesh
from costproof.ledger.metrics import UNFUSED
from costproof.ledger.workload import Workload

LinkSide = Literal["compute", "memory", "links"]
_MANY: Final = re.compile(r"([0-9]{1,6})x ?(?:([0-9]{1,6})x ?)?(?=\D)(.+)")
LARGEST: Final = 100_000
"""Most devices that ``--on`` accepts."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices that a run is on, as ``--on`` names them."""

    device: Device
    count: int | None = None
    """``None``: as many as the mesh of the run has ranks."""
    node: int | None = None
    """Devices of a node, if the name states them."""

    @property
    def node_size(self) -> int | None:
        """Return the devices of a node; ``None`` if neither the name nor the device's file states them."""
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
    """Return the devices that a name means: ``h100-sxm``, ``8xh100-sxm``, ``2x8xh100-sxm`` (two nodes of eight).

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
        raise BadInput("no number of devices", where="--on", expected=f"1 to {LARGEST:,}", got=os.fspath(on)[:60])
    return Devices(machine(found[3]), count, second)


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Rates at which the devices of a mesh exchange data, in bytes per second of one device in one direction."""

    interconnect: int
    """To the other devices of a node."""
    node: int | None
    """Devices of a node; ``None``: all are in one."""
    network: int | None
    """To other nodes; ``None``: not known."""

    def per_byte(self, kind: str, group: tuple[int, ...]) -> Fraction | None:
        """Return the least seconds that a collective takes for each byte of its payload; ``None`` if not known.

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
        """Return a lower bound of the seconds a byte that a rank sends, however it divides them among its group.

        Between nodes it has its links and its part of the network; without others in its node, only the latter.
        """
        here = sum(1 for other in group if not self.node or other // self.node == rank // self.node)
        if here == len(group):
            return Fraction(1, self.interconnect)
        if self.network is None:
            return None
        return Fraction(1, self.network + (self.interconnect if here > 1 else 0))


def link_rates(devices: Devices, mesh: Mesh) -> tuple[LinkRates | None, str]:
    """Return the rates between the ranks of a mesh, and why they are not known or what is assumed of them."""
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
    """The least time of equal collectives of a rank: of one kind, in one part of a stage."""

    stage: str
    part: str
    kind: str
    ranks: int
    """Ranks of a group."""
    nodes: int
    """Nodes that a group is spread over."""
    messages: int
    payload_bytes: int
    sent_bytes: int
    """By the ring algorithm, as reports count it."""
    seconds: str
    """The least time, however it is done."""


@dataclass(frozen=True, slots=True)
class StageLinks:
    """Time bounds of a stage with its communication, or of the whole run."""

    id: str
    sent_bytes: int
    seconds: str
    """Of its collectives, one after another."""
    exposed_s: str | None
    """Lower bound if nothing is computed during a collective: modules at the roof, and the collectives."""
    overlapped_s: str | None
    """Lower bound however collectives overlap with modules at the roof: the longer of the two."""
    bound: LinkSide | None
    """The longest clock: of all products, all bytes of memory, or all collectives."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Time bounds of the whole run on ranks that are equal."""

    ranks: tuple[int, ...]
    roof_s: str | None
    exposed_s: str | None
    overlapped_s: str | None


@dataclass(frozen=True, slots=True)
class LinkBounds:
    """Time bounds of a run on several devices, with communication."""

    count: int
    """Ranks."""
    node: int | None
    """Devices of a node; ``None``: all are in one."""
    interconnect: int
    """Bytes per second of one device to the others of its node, in one direction."""
    network: int | None
    """Bytes per second of one device to other nodes; ``None``: not known, or not used."""
    collectives: tuple[CollectiveBound, ...]
    stages: tuple[StageLinks, ...]
    """Of the counted rank; the last is the whole run."""
    ranks: tuple[RankTimes, ...]
    """Of all ranks, the slowest first."""

    def rates(self) -> dict[tuple[str, str, str], Fraction]:
        """Return (stage, part, kind of a collective) -> seconds for each byte of its payload."""
        moved = (c for c in self.collectives if c.payload_bytes)
        return {(c.stage, c.part, c.kind): Fraction(c.seconds) / c.payload_bytes for c in moved}


def collective_bounds(
    folded: Folded, rates: LinkRates, workload: Workload, axis_of: Callable[[str, str], str]
) -> Iterator[CollectiveBound]:
    """Yield the bounds of all collectives of a counted rank.

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
                if kind == "all_to_all" and PAIRS in workload.inputs:
                    rate, moved = rates.per_sent_byte(group, workload.rank), costs["comm_bytes"] or 0
                nodes = len({rank // rates.node if rates.node else 0 for rank in group})
                assert rate is not None  # link_rates has asked for all of a mesh
                yield CollectiveBound(
                    stage, part, kind, len(group), nodes, costs["messages"] or 0, payload, costs["comm_bytes"] or 0,
                    str(moved * rate),
                )  # fmt: skip


EXPERT_PRODUCTS: Final = "expert_gemm"
"""Kind of the products of routed experts in formulas."""


def by_rows(metric: str) -> bool:
    """Return whether a metric of routed experts grows with the number of tokens that a rank's experts process."""
    return metric in ("flops", "params_active", "input_bytes", "output_bytes") or metric.endswith("_flops")


def mean_of_experts(folded: Folded, ranks: int) -> Folded:
    """Return the counts of a rank with an equal share of the rows of routed experts, as the slowest has at least.

    Each of the ranks is given all rows and skips those of experts of others, so how many it multiplies is data; all
    together multiply each once. FLOPs and activations of the experts are divided and rounded down, and so are the
    parameters that one token meets. The weights read stay those of min(E / ranks, T k) experts.
    """

    def share(costs: dict[str, int | None]) -> dict[str, int | None]:
        few = {m: n // ranks for m, n in costs.items() if n is not None and by_rows(m)}
        read, unfused = costs.get("weight_read_bytes", 0), costs.get(UNFUSED)
        if unfused is not None and read is not None:
            few[UNFUSED] = read + (unfused - read) // ranks
        return {**costs, **few}

    rows = {}
    for stage, parts in folded.rows.items():
        experts = [part for part, kinds in parts.items() if EXPERT_PRODUCTS in kinds]
        rows[stage] = {
            part: {kind: share(costs) for kind, costs in kinds.items()}
            if any(part == outer or part.startswith(f"{outer}.") for outer in experts)
            else kinds
            for part, kinds in parts.items()
        }
    return replace(folded, rows=rows)
