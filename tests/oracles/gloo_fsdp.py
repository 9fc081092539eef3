"""Run small models under ``fully_shard`` on real ranks by gloo; find what they return and send.

Per number of ranks and case: the largest difference of the logits from those of one device, with the model sharded by
torch and by our own reading of it; and the bytes that each rank's sockets sent in one forward, for two inner widths,
of which the wider has a prompt more where ranks share sequences.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from costproof.models.decoding.build import own_attention
from costproof.models.decoding.decoder import Decoder
from costproof.models.decoding.fsdp import keep_parts
from costproof.models.decoding.rank_model import shard
from costproof.models.decoding.sequence_model import OwnPositions, share_sequence
from costproof.patches.exchanges import SharedSequence
from costproof.patches.sharding import plans_of
from tests.oracles.gloo_ranks import SIZES, settled
from tests.oracles.gloo_sequences import as_cudnn, positions_of, written_out

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "LlamaForCausalLM", {"attention_bias": True, "tie_word_embeddings": True}),
    "untied": ("llama", "LlamaForCausalLM", {"attention_bias": True}),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeForCausalLM", EXPERTS),
}
"""Name -> type of the configuration, class and further sizes; the 102 entries and 6 experts are uneven on 4 ranks."""
WIDTHS = (32, 96)
"""Inner widths of MLPs and experts."""
CASES: dict[int, dict[str, tuple[str, int, int, int]]] = {
    2: {"llama": ("llama", 1, 2, 1), "qwen3_moe": ("qwen3_moe", 1, 2, 1)},
    4: {
        "llama": ("llama", 1, 4, 1), "qwen3_moe": ("qwen3_moe", 1, 4, 1), "sequences": ("llama", 1, 4, 2),
        "replicas": ("llama", 2, 2, 1), "tensor": ("untied", 1, 2, 1), "experts and tensor": ("qwen3_moe", 1, 2, 1),
    },
}  # fmt: skip
"""Number of ranks -> case: family, groups that each store all parts, ranks that store parts, and neighbours of these
that share each sequence in zigzag order."""


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


def logits(model: Any, rank: int, prompts: int = 2, own: Sequence[int] = range(8)) -> torch.Tensor:
    """Return the logits of a rank's own batch of prompts of 8 tokens, at own positions."""
    ids = (torch.arange(8 * prompts).view(prompts, 8) + 31 * rank) % SIZES["vocab_size"]
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids[:, own], position_ids=torch.tensor([own])).logits
    return found


def rank_main(rank: int, ranks: int, folder: str) -> None:
    """Run all families as one rank, and write what was found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    register: Any = torch._C._distributed_c10d._register_process_group
    forget: Any = torch._C._distributed_c10d._unregister_process_group
    found: dict[str, Any] = {}
    for case, (family, replicas, parts, sharing) in CASES[ranks].items():
        tensor = ranks // (replicas * parts)
        sizes, names = (replicas, parts // sharing, sharing, tensor), ("dp", "dp_shard", "cp", "tp")
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        storing = mesh["dp_shard", "cp"]._flatten("fsdp")  # as torchtitan's parallel_dims
        groups = {f"fsdp:{parts}": storing, f"tp:{tensor}": mesh["tp"], f"cp:{sharing}": mesh["cp"]}
        for name, of in groups.items():
            register(name, of.get_group())
        batch, place = rank // (tensor * sharing), rank % sharing if sharing > 1 else 0
        own = positions_of("zigzag", sharing, place, 8) if sharing > 1 else range(8)
        one = logits(model_of(family, WIDTHS[0]), batch)[:, own]
        ours = model_of(family, WIDTHS[0])
        if sharing > 1:
            share_sequence(ours, Decoder(), OwnPositions("zigzag", sharing, place, written_out))
        plans = plans_of(ours, tensor, 1)
        if tensor > 1:
            shard(ours, plans, tensor, rank % tensor)
        keep_parts(ours, parts, rank // tensor % parts)
        theirs, sent = [], []
        for prompts, width in enumerate(WIDTHS, 2) if sharing > 1 else ((2, width) for width in WIDTHS):
            model = model_of(family, width)
            around: Callable[[], Any] = nullcontext
            if sharing > 1:
                shared = SharedSequence(model, "zigzag", sharing, place, as_cudnn)
                shared.group, around = mesh["cp"].get_group(), shared.attending
            if tensor > 1:
                apply_tensor_parallelism(model, mesh["tp"], dict(plans[0]))
            for module in (*model.model.layers, model):
                over = mesh["dp", "dp_shard"] if replicas > 1 else storing
                fully_shard(module, mesh=over, reshard_after_forward=True)
            with around():
                theirs.append(logits(model, batch, prompts, own))
            dist.barrier()
            before = settled()
            dist.barrier()
            with around():
                logits(model, batch, prompts, own)
            dist.barrier()
            after = settled()
            sent.append(None if before is None or after is None else after - before)
        with own_attention(ours) if sharing > 1 else nullcontext():
            answer = logits(ours, batch, own=own)
        found[case] = {
            "theirs": float((theirs[0] - one).abs().max()),
            "ours": float((answer - one).abs().max()),
            "largest": float(one.abs().max()),
            "sent": sent,
        }
        dist.barrier()
        for name in groups:
            forget(name)
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()
