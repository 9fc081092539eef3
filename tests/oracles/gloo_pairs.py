"""Exchange pairs of a token and an expert between real ranks by gloo, as transformers does and as our runs do.

Per rank: the largest difference of our results from those of ``AllToAllEP``, and from those of one device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers.distributed.expert_parallel import AllToAllEP

from costproof.patches.exchanges import ExchangingExperts

EXPERTS: Final = 8
TOP_K: Final = 2
WIDTH: Final = 16


class Experts:
    """Experts of one rank, each a matrix."""

    def __init__(self, matrices: torch.Tensor, rank: int, ranks: int) -> None:
        self.num_experts = EXPERTS // ranks
        self.matrices = matrices[rank * self.num_experts :][: self.num_experts]

    def forward(self, tokens: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        every = torch.einsum("th,tkhd->tkd", tokens, self.matrices[chosen])
        return (every * weights.unsqueeze(2)).sum(1)


def batch(place: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the tokens of a batch, their experts, and the weights of these."""
    rng = torch.Generator().manual_seed(100 + place)
    chosen = torch.stack([torch.randperm(EXPERTS, generator=rng)[:TOP_K] for _ in range(tokens)])
    return torch.randn(tokens, WIDTH, generator=rng), chosen, torch.rand(tokens, TOP_K, generator=rng)


def rank_main(rank: int, ranks: int, alike: int, tokens: int, folder: str) -> None:
    """Run as one rank; each ``alike`` neighbours have the same batch of ``tokens``, in slices of equal size or less."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    try:
        same = init_device_mesh("cpu", (ranks // alike, alike), mesh_dim_names=("batches", "tp"))["tp"]
        every = init_device_mesh("cpu", (ranks,), mesh_dim_names=("ep",))
        matrices = torch.randn(EXPERTS, WIDTH, WIDTH, generator=torch.Generator().manual_seed(5))
        held: Any = Experts(matrices, rank, ranks)
        sent = []
        for other in range(ranks):
            size = -(-tokens // alike)
            own = batch(other // alike, tokens)[1][other % alike * size :][:size]
            holders = own.flatten() // held.num_experts
            sent.append([int((holders == r).sum()) for r in range(ranks)])
        splits = {id(held): {tokens: [(sent[rank], [of[rank] for of in sent])]}}
        given = batch(rank // alike, tokens)
        ours = ExchangingExperts(splits, held, every, same)(*given)
        theirs = AllToAllEP(held, every, same)(*given)
        alone = Experts(matrices, 0, 1).forward(*given)
        found = {"theirs": float((ours - theirs).abs().max()), "alone": float((ours - alone).abs().max())}
        Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
        dist.barrier()
    finally:
        dist.destroy_process_group()
