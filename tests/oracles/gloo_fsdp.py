"""Run small models under ``fully_shard`` on real ranks by gloo; find what they return and send.

Per number of ranks and case: the largest difference of the logits from those of one device, with the model sharded by
torch and by our own reading of it; and the bytes that each rank's sockets sent in one forward, for two inner widths.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from costproof.models.decoding.fsdp import keep_parts
from costproof.models.decoding.rank_model import shard
from costproof.patches.sharding import plans_of
from tests.oracles.gloo_ranks import SIZES, settled

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "LlamaForCausalLM", {"attention_bias": True, "tie_word_embeddings": True}),
    "untied": ("llama", "LlamaForCausalLM", {"attention_bias": True}),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeForCausalLM", EXPERTS),
}
"""Name -> type of the configuration, class and further sizes; the 102 entries and 6 experts are uneven on 4 ranks."""
WIDTHS = (32, 96)
"""Inner widths of MLPs and experts."""
CASES: dict[int, dict[str, tuple[str, int, int]]] = {
    2: {"llama": ("llama", 1, 2), "qwen3_moe": ("qwen3_moe", 1, 2)},
    4: {
        "llama": ("llama", 1, 4), "qwen3_moe": ("qwen3_moe", 1, 4),
        "replicas": ("llama", 2, 2), "tensor": ("untied", 1, 2), "experts and tensor": ("qwen3_moe", 1, 2),
    },
}  # fmt: skip
"""Number of ranks -> case: family, groups that each store all parts, and ranks that store parts."""


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
    forget: Any = torch._C._distributed_c10d._unregister_process_group
    found: dict[str, Any] = {}
    for case, (family, replicas, parts) in CASES[ranks].items():
        tensor = ranks // (replicas * parts)
        mesh = init_device_mesh("cpu", (replicas, parts, tensor), mesh_dim_names=("dp", "fsdp", "tp"))
        for axis, size in (("fsdp", parts), ("tp", tensor)):
            register(f"{axis}:{size}", mesh[axis].get_group())
        batch = rank // tensor
        one = logits(model_of(family, WIDTHS[0]), batch)
        ours = model_of(family, WIDTHS[0])
        plans = plans_of(ours, tensor, 1)
        if tensor > 1:
            shard(ours, plans, tensor, rank % tensor)
        keep_parts(ours, parts, batch % parts)
        theirs, sent = [], []
        for width in WIDTHS:
            model = model_of(family, width)
            if tensor > 1:
                apply_tensor_parallelism(model, mesh["tp"], dict(plans[0]))
            for module in (*model.model.layers, model):
                own = mesh["dp", "fsdp"] if replicas > 1 else mesh["fsdp"]
                fully_shard(module, mesh=own, reshard_after_forward=True)
            theirs.append(logits(model, batch))
            dist.barrier()
            before = settled()
            dist.barrier()
            logits(model, batch)
            dist.barrier()
            after = settled()
            sent.append(None if before is None or after is None else after - before)
        found[case] = {
            "theirs": float((theirs[0] - one).abs().max()),
            "ours": float((logits(ours, batch) - one).abs().max()),
            "largest": float(one.abs().max()),
            "sent": sent,
        }
        dist.barrier()
        for axis, size in (("fsdp", parts), ("tp", tensor)):
            forget(f"{axis}:{size}")
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()
