"""Run small models on real ranks that exchange tensors by gloo; find what they return and send.

Per number of ranks and family: the largest difference of the logits from those of one device, with the model split
by transformers and by our own reading of its plan; and for prompts of two lengths the bytes that each rank's sockets
sent in one forward, as the kernel counts them (``TCP_INFO``). Ranks with batches of their own have other prompts each.
On two ranks also a pipeline of two stages.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from transformers.distributed.expert_parallel import EPImplementationInterface, apply_expert_parallelism
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from costproof.ledger.mesh import Mesh
from costproof.models.decoding.plans import ENGINES, styles_of
from costproof.models.decoding.rank_model import shard
from costproof.patches.exchanges import GatheringExperts, expert_meshes
from costproof.patches.sharding import cut_to_stage, plans_of

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 102,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: dict[str, tuple[str, str, bool, dict[str, Any]]] = {
    "llama": ("llama", "LlamaForCausalLM", False, {"attention_bias": True, "mlp_bias": True}),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeForCausalLM", False, EXPERTS),
    "qwen3_moe_ep": ("qwen3_moe", "Qwen3MoeForCausalLM", True, EXPERTS),
    "mixtral_ep": ("mixtral", "MixtralForCausalLM", True, {"num_local_experts": 8, "sliding_window": None}),
}
"""Name -> type of the configuration, class, whether experts are split by expert, and further sizes."""
LENGTHS = (8, 24)
RUNS: dict[int, tuple[tuple[str, tuple[int, ...]], ...]] = {
    2: (("llama", (2,)), ("qwen3_moe", (2,)), ("qwen3_moe_ep", (2, 2)), ("qwen3_moe_ep", (2, 1))),
    4: (
        ("llama", (2,)), ("qwen3_moe_ep", (2,)), ("qwen3_moe_ep", (2, 2)), ("mixtral_ep", (2, 2, 2, 2)),
        ("qwen3_moe_ep", (2, 1)),
    ),
}  # fmt: skip
"""Number of ranks -> families, each with the prompts of the batches that share experts."""
SECONDS = 240
"""The most that the ranks of a group may take."""
_ESTABLISHED = 1
"""State of a connection in the first byte of the kernel's ``struct tcp_info``."""
_UNACKED, _ACKED, _NOT_SENT = 24, 120, 144
"""Offsets of ``tcpi_unacked``, ``tcpi_bytes_acked`` and ``tcpi_notsent_bytes`` in it.

Repeated segments count once in the second.
"""


def model_of(family: str, dtype: torch.dtype) -> Any:
    """Return the model with weights that depend only on the family."""
    kind, name, _, more = FAMILIES[family]
    torch.manual_seed(0)
    made = getattr(transformers, name)(transformers.CONFIG_MAPPING[kind](**SIZES, **more)).to(dtype).eval()
    for parameter in made.parameters():  # biases and norms too, which begin as zeros and ones
        parameter.data.normal_(0.0, 0.2)
    return made


def logits(model: Any, length: int, batch: int = 0, prompts: int = 2) -> torch.Tensor:
    """Return the logits of a batch of prompts; each number has other ones."""
    ids = (torch.arange(prompts * length).view(prompts, length) + 31 * batch) % SIZES["vocab_size"]
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids).logits
    return found


def sent() -> tuple[int, bool] | None:
    """Return the bytes that the TCP sockets of this process have sent, and whether all that they were given arrived.

    ``None`` if the kernel does not say.
    """
    total, arrived = 0, True
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(number))) as one:
                if one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6):
                    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    if len(info) < _NOT_SENT + 4:
                        return None
                    if info[0] != _ESTABLISHED:  # one that listens counts what waits for it
                        continue
                    total += struct.unpack_from("Q", info, _ACKED)[0]
                    arrived &= not any(struct.unpack_from("I", info, at)[0] for at in (_UNACKED, _NOT_SENT))
    return total, arrived


def settled() -> int | None:
    """Return the bytes of :func:`sent` once all have arrived and they no longer change."""
    before: tuple[int, bool] | None = None
    now = sent()
    while now is not None and not (now == before and now[1]):
        time.sleep(0.02)
        before, now = now, sent()
    return None if now is None else now[0]


def pipeline(rank: int, ranks: int) -> dict[str, Any]:
    """Run a dense model as one stage of a pipeline, which receives zeros where nothing is sent."""
    one = logits(model_of("llama", torch.float64), LENGTHS[0])
    stages = {dtype: model_of("llama", dtype) for dtype in (torch.float64, torch.float32)}
    for model in stages.values():
        cut_to_stage(model, 1, rank, ranks)

    def run(model: Any, length: int) -> torch.Tensor:
        given = torch.zeros(2, length, SIZES["hidden_size"], dtype=model.dtype)
        ids = torch.arange(2 * length).view(2, length) % SIZES["vocab_size"]
        with torch.no_grad():
            found: torch.Tensor = model(**({"inputs_embeds": given} if rank else {"input_ids": ids})).logits
        return found

    last = run(stages[torch.float64], LENGTHS[0])
    bytes_sent = []
    for length in LENGTHS:
        run(stages[torch.float32], length)
        dist.barrier()
        before = settled()
        dist.barrier()
        run(stages[torch.float32], length)
        dist.barrier()
        after = settled()
        bytes_sent.append(None if before is None or after is None else after - before)
    dist.barrier()  # a rank that ends closes the sockets, whose bytes another may still count
    off = float((last - one).abs().max()) if rank == ranks - 1 else None
    return {"off": off, "largest": float(one.abs().max()), "sent": bytes_sent}


def rank_main(rank: int, ranks: int, families: tuple[tuple[str, tuple[int, ...]], ...], folder: str) -> None:
    """Run all families as one rank, and write what was found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    register: Any = torch._C._distributed_c10d._register_process_group
    register(f"tp:{ranks}", dist.group.WORLD)
    EPImplementationInterface.register("gather", GatheringExperts)
    found: dict[str, Any] = {}
    for family, prompts in families:
        batches, uneven = len(prompts), prompts if len({*prompts}) > 1 else ()
        tp, batch = ranks // batches, rank // (ranks // batches)
        run = partial(logits, batch=batch, prompts=prompts[batch])
        meshes = expert_meshes(batches, tp)
        if batches > 1 and not uneven:  # those of uneven batches are the same
            root: Any = meshes[1]._get_root_mesh()
            register(f"ep/tp:{batches}", root[root.mesh_dim_names[0]].get_group())
            if tp > 1:
                register(f"tp:{tp}", meshes[0].get_group())
        exact = torch.float64 if family == "llama" else torch.float32  # grouped products have no float64
        one = run(model_of(family, exact), LENGTHS[0])
        theirs, ours, plain = (model_of(family, dtype) for dtype in (exact, exact, torch.float32))
        plans = plans_of(theirs, tp, ranks if FAMILIES[family][2] else 1)
        for model in () if uneven else (theirs, plain):
            if tp > 1:
                apply_tensor_parallelism(model, meshes[0], dict(plans[0]))
            form = "auto" if batches == 1 else "gather"
            apply_expert_parallelism(model, meshes[1], meshes[0], dict(plans[1]), ep_implementation=form)
        for model in (ours, plain) if uneven else (ours,):
            shard(model, plans, tp, rank, batches=batches, sequences=uneven)
        engines = {}
        for name, engine in ENGINES.items() if family == "llama" else ():
            model, work = model_of(family, exact), Mesh(tp=ranks)
            styles = styles_of(model, engine, work)
            shard(model, styles, ranks, rank, multiple=engine.padding(ranks), sequence=engine.sequence)
            engines[name] = float((logits(model, LENGTHS[0]) - one).abs().max())
        bytes_sent = []
        for length in LENGTHS:
            run(plain, length)
            dist.barrier()
            before = settled()
            dist.barrier()
            run(plain, length)
            dist.barrier()
            after = settled()
            bytes_sent.append(None if before is None or after is None else after - before)
        found[f"{family} of {' and '.join(map(str, prompts))}"] = {
            "theirs": None if uneven else float((run(theirs, LENGTHS[0]) - one).abs().max()),  # gloo's parts are equal
            "ours": float((run(ours, LENGTHS[0]) - one).abs().max()),
            "engines": engines,
            "largest": float(one.abs().max()),
            "sent": bytes_sent,
        }
        dist.barrier()
    if ranks == 2:
        found["pipeline"] = pipeline(rank, ranks)
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()


def run_ranks(rank_main: Callable[..., None], ranks: int, *arguments: object) -> list[Any]:
    """Run ``rank_main(rank, ranks, *arguments, folder)`` in a process for each rank; return what each has written.

    The processes are forks of this one, so that none of them imports torch again.

    Raises:
        RuntimeError: a rank has failed or does not end.
    """
    forked = multiprocessing.get_context("fork")
    end = time.monotonic() + SECONDS
    with tempfile.TemporaryDirectory() as folder:
        started = [forked.Process(target=rank_main, args=(r, ranks, *arguments, folder)) for r in range(ranks)]
        for process in started:
            process.start()
        try:
            while any(process.exitcode is None for process in started):
                if time.monotonic() > end or any(process.exitcode for process in started):
                    raise RuntimeError(f"exit codes of ranks: {[process.exitcode for process in started]}")
                wait([process.sentinel for process in started if process.exitcode is None], timeout=1)
        finally:
            for process in started:
                process.kill()
                process.join()
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
