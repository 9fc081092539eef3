"""Run small models under ``fully_shard`` on real ranks by gloo; print what they return and send as JSON.

Per number of ranks and family: the largest difference of the logits from those of one device, with the model sharded by
torch and by our own reading of it; and the bytes that each rank's sockets sent in one forward, for two inner widths.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).parents[2]))

from costproof.models.decoding.fsdp import keep_parts
from tests.oracles.gloo_ranks import SIZES, run_ranks, settled

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "LlamaForCausalLM", {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeForCausalLM", EXPERTS),
}
"""Name -> type of the configuration, class and further sizes; the 102 entries and 6 experts are uneven on 4 ranks."""
WIDTHS = (32, 96)
"""Inner widths of MLPs and experts."""


def model_of(family: str, width: int) -> Any:
    """Return the model in float32 with weights that depend on family and width."""
    kind, name, more = FAMILIES[family]
    torch.manual_seed(0)
    sizes = {**SIZES, "intermediate_size": width, "moe_intermediate_size": width, **more}
    sizes = sizes if "num_experts" in more else {k: v for k, v in sizes.items() if k != "moe_intermediate_size"}
    made = getattr(transformers, name)(transformers.CONFIG_MAPPING[kind](**sizes)).float().eval()
    for parameter in made.parameters():
        parameter.data.normal_(0.0, 0.2)
    return made


def logits(model: Any, rank: int) -> torch.Tensor:
    """Return the logits of a rank's own batch of two prompts of 8 tokens."""
    ids = (torch.arange(16).view(2, 8) + 31 * rank) % SIZES["vocab_size"]
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids).logits
    return found


def rank_main(rank: int, ranks: int, folder: str) -> None:
    """Run all families as one rank, and write what was found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    register: Any = torch._C._distributed_c10d._register_process_group
    register(f"fsdp:{ranks}", dist.group.WORLD)
    mesh = init_device_mesh("cpu", (ranks,))
    found: dict[str, Any] = {}
    for family in FAMILIES:
        one = logits(model_of(family, WIDTHS[0]), rank)
        ours = model_of(family, WIDTHS[0])
        keep_parts(ours, ranks, rank)
        theirs, sent = [], []
        for width in WIDTHS:
            model = model_of(family, width)
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh, reshard_after_forward=True)
            fully_shard(model, mesh=mesh, reshard_after_forward=True)
            theirs.append(logits(model, rank))
            dist.barrier()
            before = settled()
            dist.barrier()
            logits(model, rank)
            dist.barrier()
            after = settled()
            sent.append(None if before is None or after is None else after - before)
        found[family] = {
            "theirs": float((theirs[0] - one).abs().max()),
            "ours": float((logits(ours, rank) - one).abs().max()),
            "largest": float(one.abs().max()),
            "sent": sent,
        }
        dist.barrier()
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Print, for each number of ranks, a list with the findings of each rank."""
    print(json.dumps({ranks: run_ranks(rank_main, ranks) for ranks in (2, 4)}))


if __name__ == "__main__":
    main()
