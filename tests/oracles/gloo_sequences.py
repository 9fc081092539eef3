"""Run a small decoder on real ranks that share a sequence and exchange tensors by gloo; find what they return.

Per number of ranks and layout: the largest difference of a rank's logits from those of one device, of a prompt and of a
decode step behind it, by torch's ring (the run) and by our own (the graph); and the bytes that a rank's sockets sent.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import transformers

from costproof.models.decoding.absorbed import absorb
from costproof.models.decoding.build import own_attention
from costproof.models.decoding.decoder import Decoder
from costproof.models.decoding.sequence_model import OwnPositions, share_sequence
from costproof.patches.exchanges import SharedSequence
from tests.oracles.gloo_ranks import settled

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 102,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "num_key_value_heads": 8, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 8, "first_k_dense_replace": 2, "head_dim": 4,
}  # fmt: skip
WINDOWS: dict[str, Any] = {
    "sliding_window": 6, "num_local_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "eager",
}  # fmt: skip
FAMILIES = {
    "llama": ("LlamaForCausalLM", SIZES), "deepseek_v3": ("DeepseekV3ForCausalLM", SIZES | LATENT),
    "mistral": ("MistralForCausalLM", SIZES | {"sliding_window": 6}),
    "gpt_oss": ("GptOssForCausalLM", SIZES | WINDOWS),
}  # fmt: skip
RUNS = {
    "llama": ("ring", "zigzag", "ulysses"), "deepseek_v3": ("ring", "zigzag", "ulysses"), "mistral": ("ulysses",),
    "gpt_oss": ("ulysses",), "deepseek_v3 absorbed": ("zigzag",),
}  # fmt: skip
"""Family, and whether its steps absorb the expansion of latents -> layouts."""
BATCHES = (2, 4)


def written_out(query: Any, key: Any, value: Any, causal: bool, scale: float) -> tuple[Any, Any]:
    """Return attention and the logarithms of its sums [.., 1] by products and a softmax."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scale
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    logs = scores.logsumexp(-1, keepdim=True)
    return (scores - logs).exp() @ value, logs


def as_cudnn(
    query: Any, key: Any, value: Any, attn_bias: Any = None, compute_log_sumexp: bool = True, dropout_p: float = 0.0,
    is_causal: bool = False, return_debug_mask: bool = False, *, scale: float = 1.0,
) -> tuple[Any, Any]:  # fmt: skip
    """Run the same with the arguments of cuDNN's operator."""
    return written_out(query, key, value, is_causal, scale)


def model_of(family: str) -> Any:
    """Return the model with weights that depend only on the family."""
    torch.manual_seed(0)
    name, sizes = FAMILIES[family]
    made = getattr(transformers, name)(transformers.CONFIG_MAPPING[family](**sizes)).double().eval()
    for parameter in made.parameters():
        parameter.data.normal_(0.0, 0.2)
    return made


def positions_of(layout: str, ranks: int, rank: int, length: int) -> list[int]:
    """Return the positions of a rank."""
    every = list(range(length))
    if layout != "zigzag":
        return every[rank * length // ranks : (rank + 1) * length // ranks]
    half = length // ranks // 2
    last = 2 * ranks - 1 - rank
    return every[rank * half : (rank + 1) * half] + every[last * half : (last + 1) * half]


def seen(family: str, queries: int, keys: int) -> Any:
    """Return the masks of all positions for attention to the last ``keys``, as the family takes them."""
    if family not in ("mistral", "gpt_oss"):
        return None
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    full, window = ((distance >= 0) & (distance < size) for size in (keys, 6))
    window = window[:, -6:] if queries == 1 else window  # a full cache of a window
    if family == "mistral":
        return window[None, None]
    hidden = [torch.zeros(x.shape).double().masked_fill(~x, -torch.inf)[None, None] for x in (full, window)]
    return dict(zip(("full_attention", "sliding_attention"), hidden, strict=True))


def run(model: Any, family: str, ids: Any, own: list[int], *, step: bool, around: Any) -> tuple[Any, Any]:
    """Return the logits of own positions of a prompt, and of one decode step on the token behind it."""
    prompt, behind = (seen(family, queries, keys) for queries, keys in ((16, 16), (1, 17)))
    with torch.no_grad(), around():
        places = torch.tensor([own])
        first = model(input_ids=ids[:, own], position_ids=places, attention_mask=prompt, use_cache=True)
        if not step:
            return first.logits, None
        place = torch.tensor([[ids.shape[1] - 1]])
        again = model(
            input_ids=ids[:, -1:], position_ids=place, attention_mask=behind, past_key_values=first.past_key_values
        )
    return first.logits, again.logits


def rank_main(rank: int, ranks: int, folder: str) -> None:
    """Run all layouts as one rank, and write what was found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    register: Any = torch._C._distributed_c10d._register_process_group
    register(f"cp:{ranks}", dist.group.WORLD)
    found: dict[str, Any] = {}
    for name, layouts in RUNS.items():
        family, _, absorbed = name.partition(" ")
        eager = "eager" if family == "gpt_oss" else "sdpa"
        for layout in layouts:
            ids = torch.arange(2 * 17).view(2, 17) % 102
            own = positions_of(layout, ranks, rank, 16)
            measured = family == "llama" or absorbed or (family, layout) == ("deepseek_v3", "ulysses")
            with torch.no_grad():
                whole = model_of(family)(input_ids=ids).logits
            theirs, ours, single = (model_of(family) for _ in range(3))
            for one in (theirs, ours, single) if absorbed else ():
                absorb(one, "model.layers")
            shared = SharedSequence(theirs, layout, ranks, rank, as_cudnn, eager)
            shared.group = dist.group.WORLD
            kernel = "" if family == "deepseek_v3" else eager
            share_sequence(ours, Decoder(), OwnPositions(layout, ranks, rank, written_out, kernel))
            off = {}
            for source, model, around in (
                ("theirs", theirs, shared.attending),
                ("ours", ours, partial(own_attention, ours)),
            ):
                prompt, after = run(model, family, ids, own, step=True, around=around)
                differences = prompt - whole[:, own], after - whole[:, -1:]
                off[source] = [float(x.abs().max()) for x in differences]
            sent = []
            for batch in BATCHES if measured else ():
                more = torch.zeros(batch, 17, dtype=torch.long)
                single.float()
                again = SharedSequence(single, layout, ranks, rank, as_cudnn)
                again.group = dist.group.WORLD
                for steps in (False, True):
                    run(single, family, more, own, step=steps, around=again.attending)
                    dist.barrier()
                    before = settled()
                    dist.barrier()
                    run(single, family, more, own, step=steps, around=again.attending)
                    dist.barrier()
                    after_all = settled()
                    sent.append(None if before is None or after_all is None else after_all - before)
                    dist.barrier()
            found[f"{name} {layout}"] = {"off": off, "largest": float(whole.abs().max()), "sent": sent}
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()
