"""What the hook tracer costs on a CPU forward, alone and with the judge: ``python -m benchmarks.hooks_overhead``.

The real architecture with real numbers, at widths at which a forward takes a few tenths of a second.
Plain, hooked and judged forwards take turns on one thread, and the medians of their processor time are
compared: the wall time of a busy machine tells about its other programs. The hooked time contains all that
the tracer does: hooks on every module set and taken off, arguments copied, shapes noted.
``--all-calls`` notes the shapes of every call.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from contextlib import nullcontext
from typing import Any
from unittest import mock

LIMIT = 0.10
"""Goal: the hooked forward takes at most a tenth more. The judge sees every operator, so it has a price for each."""

CONFIG: dict[str, Any] = {
    "vision_config": {
        "sam_config": {"hidden_size": 192, "num_attention_heads": 4, "mlp_dim": 768, "num_hidden_layers": 4,
                       "global_attn_indexes": [1, 3], "output_channels": 64, "downsample_channels": [96, 128],
                       "image_size": 512},
        "encoder_config": {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4,
                           "num_attention_heads": 4},
    },
    "text_config": {"hidden_size": 320, "intermediate_size": 1280, "num_hidden_layers": 4, "num_attention_heads": 5,
                    "num_key_value_heads": 5, "vocab_size": 4096, "n_routed_experts": 8, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 320},
    "image_token_id": 5,
}  # fmt: skip


def prepared() -> Any:
    """The run: 256 tokens of text and one page of 512 pixels, in float32 on the CPU."""
    import torch

    from costproof.models.families.deepseek_ocr import native
    from costproof.models.pages.page import Page, page_workload

    torch.manual_seed(0)
    workload = page_workload("bench", Page(512, 512), text_tokens=256, new_tokens=0, dtype="float32")
    model = native.build_model(CONFIG, dtype="float32")
    run = native.READER.shape_runs(model, workload)[0]
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            torch.nn.init.normal_(tensor, std=0.02)
        else:
            tensor.data.zero_()
    kwargs: dict[str, Any] = dict(run.kwargs)
    for name, value in run.kwargs.items():
        if isinstance(value, torch.Tensor):
            kwargs[name] = torch.zeros(value.shape, dtype=value.dtype)
    image_tokens = run.kwargs["input_ids"].shape[1] - workload.text_tokens
    kwargs["input_ids"][:, :image_tokens] = CONFIG["image_token_id"]
    return type(run)(run.id, model, kwargs, run.locate, attention_paths=run.attention_paths, marks=run.marks)


def measure(run: Any, rounds: int, all_calls: bool) -> dict[str, list[float]]:
    """Processor seconds of ``rounds`` forwards of each kind, taken in turns on one thread."""
    import torch

    from costproof.tracers.flop_counter_mode import FlopCounterJudge
    from costproof.tracers.hooks import trace_hooks

    def plain() -> None:
        with torch.no_grad():
            run.model(**copy.deepcopy(dict(run.kwargs)))

    def judged() -> None:
        trace_hooks(run, all_calls=all_calls)

    def hooked() -> None:
        with mock.patch.object(FlopCounterJudge, "watching", nullcontext):
            judged()

    torch.set_num_threads(1)
    kinds = {"plain": plain, "hooked": hooked, "judged": judged}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(rounds + 1):
        for name, work in kinds.items():
            start = time.process_time()
            work()
            times[name] += [time.process_time() - start] if turn else []
    return times


def main() -> None:
    """Print the two medians with their spread, and the overhead."""
    parser = argparse.ArgumentParser(description="What the hook tracer costs on a CPU forward.")
    parser.add_argument("--rounds", type=int, default=9, help="forwards of each kind")
    parser.add_argument("--all-calls", action="store_true", help="note the shapes of every call")
    options = parser.parse_args()
    run = prepared()
    times = measure(run, options.rounds, options.all_calls)
    modules = sum(1 for _ in run.model.modules())
    print(f"{modules} modules, {options.rounds} forwards of each kind, taken in turns; processor time on one thread")
    for name, taken in times.items():
        print(f"  {name:<7} median {statistics.median(taken):.3f} s  ({min(taken):.3f} to {max(taken):.3f})")
    plain = times.pop("plain")
    for name, taken in times.items():
        overhead, least = statistics.median(taken) / statistics.median(plain) - 1, min(taken) / min(plain) - 1
        goal = f" (goal: under {LIMIT:.0%})" if name == "hooked" else ""
        print(f"{name}: {overhead:+.1%}{goal}; between the fastest: {least:+.1%}")


if __name__ == "__main__":
    main()
