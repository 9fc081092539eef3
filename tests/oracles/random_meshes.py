"""Random small configurations of a family, and random meshes that fit each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise, product
from math import prod
from typing import Any, Final, cast

from costproof.ledger.errors import Problems
from costproof.ledger.workload import Workload
from costproof.models.decoding.domain import CONFIG
from costproof.models.registry import load_target

FAMILIES: Final = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "mixtral", "qwen3-moe", "deepseek-v2",
    "deepseek-v3", "gpt-oss", "llava",
)  # fmt: skip
MESHES: Final = 10
"""Meshes that are drawn for each configuration."""
SHARED: Final = ("tp", "cp", "fsdp", "dp", "pp")
PLANS: Final[tuple[dict[str, str], ...]] = ({}, {"plan": "vllm"}, {"plan": "megatron"})
POOLS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "tensors": tuple(
        {"tp": tp, "dp": dp, **({"ep": tp} if by_expert else {}), **plan}
        for tp, dp, by_expert, plan in product((1, 2, 3, 4, 6, 8, 12), (1, 2, 3), (False, True), PLANS)
        if tp > 1 or (dp > 1 and not by_expert and not plan)
    ),
    "stages": tuple({"pp": 2, "tp": tp, "dp": dp} for tp, dp in product((1, 2, 3), (1, 2))),
    "sequences": tuple(
        {"cp": cp, "tp": tp, "dp": dp, "cp_plan": plan}
        for cp, tp, dp, plan in product((2, 3, 4, 6), (1, 2), (1, 2), ("ring", "zigzag", "ulysses"))
    ),
    "parts of parameters": tuple({"fsdp": fsdp, "cp": cp} for fsdp, cp in product((2, 3, 4), (1, 2))),
    "batches of experts": tuple(
        {"tp": tp, "dp": dp, "ep": tp * dp, **({"dispatch": "all-to-all"} if pairs else {})}
        for tp, dp, pairs in ((1, 2, False), (1, 3, False), (2, 2, False), (1, 2, True), (1, 3, True), (2, 2, True))
    ),
    "pairs": tuple(
        {"dispatch": "all-to-all", "ep": ep, **mesh}
        for ep, mesh in (
            (2, {"tp": 2}), (3, {"tp": 3}), (2, {"dp": 2, "pp": 2}), (4, {"tp": 2, "dp": 2, "pp": 2}),
            (2, {"tp": 2, "fsdp": 2}), (3, {"tp": 3, "dp": 2, "fsdp": 2}),
        )
    ),
}  # fmt: skip
"""Meshes of up to 36 devices that may fit a model, by what ranks share."""


def configurations(family: str) -> Iterator[Any]:
    """Yield random small configurations whose sizes many numbers divide, as targets."""
    rng, model = random.Random(f"meshes of {family}"), cast(Any, load_target(family))
    own = getattr(type(model.config), "ranges", None)
    ranges = model.domain().parameters.ranges if own is None else {**CONFIG, **own}
    while True:
        sizes = {name: rng.choice(values) for name, values in ranges.items()}
        sizes |= {"layers": 2, "row": 8, "S": 5, "P": 5, "text_intermediate": 24 * rng.randint(1, 3)}
        sizes |= {"text_kv_heads": rng.choice((1, 2, 4)), "text_groups": rng.choice((4, 6, 8, 12))}
        # Grouped products need rows of a multiple of 16 bytes, also of a rank: 8 x 24 columns / 12 ranks are 16.
        sizes |= {"text_moe_rows": 24} if "text_moe_rows" in sizes else {}
        sizes |= {"text_experts": 24} if "text_experts" in sizes else {}
        drawn = model.drawn(sizes, rng)
        assert drawn is not None
        yield drawn[0]


def meshes(model: Any, rng: random.Random) -> Iterator[Workload]:
    """Yield workloads of a model on different meshes that fit it, of a random rank; each pool in turn, in random order.

    Families of text and images have meshes of their decoders.
    """
    left = [rng.sample(pool, len(pool)) for pool in POOLS.values()]
    while left := [pool for pool in rng.sample(left, len(left)) if pool]:
        for pool in left:
            while pool:
                try:
                    work = on_mesh(model, pool.pop(), rng)
                except Problems:
                    continue
                yield work
                break


def on_mesh(model: Any, mesh: dict[str, Any], rng: random.Random) -> Workload:
    """Return the workload of a random rank of a mesh; with ``dispatch``, pairs of random experts.

    Raises:
        Problems: the model does not fit the mesh.
    """
    dp, tp = mesh.get("dp", 1), mesh.get("tp", 1)
    batch: int = rng.randint(parts := dp * mesh.get("fsdp", 1), max(parts, 4))
    run: dict[str, Any] = {"text_tokens": 12, "new_tokens": rng.randint(0, 2), "batch": batch, **mesh}
    if "cp" in mesh and getattr(model.config, "kv_rank", 0) > 0:
        run["decoding"] = rng.choice(("expanded", "absorbed"))
    if "dispatch" in mesh:
        rows, length = [], rng.choice((11, 12))
        for rank in range(tp * parts):
            tokens = range(len(range(batch)[rank // tp :: parts]) * length)
            chunk = -(-len(tokens) // tp)
            each = len(tokens[rank % tp * chunk :][:chunk]) * getattr(model.config, "top_k", 0)
            cut = sorted(rng.randint(0, each) for _ in range(mesh["ep"] - 1))
            rows.append([b - a for a, b in pairwise((0, *cut, each))])
        run |= {"text_tokens": length, "new_tokens": 0, "pairs": ";".join(",".join(map(str, row)) for row in rows)}
    return cast(Workload, model.workload(**run, rank=rng.randrange(prod(mesh.get(x, 1) for x in SHARED))))
