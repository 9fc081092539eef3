"""``python -m tests.support.vision_packages page|whole-page``: what torchvision, timm and diffusers say in a process.

They lie apart, so that nothing else sees them: transformers builds other models where they are. A torchvision that was
built for another torch has no operators of its own, and does not import without their names.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(sys.prefix) / "vision"
"""Where ``make`` puts them."""
PAGE = ROOT / "docs" / "vision-models.md"
SUPPRESSION = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def run(what: str) -> subprocess.CompletedProcess[str]:
    """This module in a process of its own."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(FOLDER), os.environ.get("PYTHONPATH", "")))}
    command = [sys.executable, "-m", "tests.support.vision_packages", what]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def importable() -> None:
    """Make torchvision import, whatever torch it was built for."""
    import torch

    names = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            names.define(name + SUPPRESSION)  # type: ignore[no-untyped-call]
    globals()["_kept"] = names  # its names go with it


OTHERS = (
    "densenet121", "efficientnet_b0", "maxvit_t", "regnet_y_400mf", "convnext_tiny", "vit_b_16", "deit_tiny",
    "poolformer_s12", "xcit_nano", "pvt_v2_b0", "resnet50", "swin_t", "mobilevit_xxs",
)  # fmt: skip
"""Models of the page that only the thorough tests take: the quick ones take the smallest of each package."""


def page(*, whole: bool) -> int:
    """Run the examples of the page and print their number and each difference; return how many differ."""
    text = re.sub(r"^```\w*$", "", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, PAGE.name, 0)
    if not whole:
        examples.examples = [e for e in examples.examples if not any(name in e.source for name in OTHERS)]
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(examples)
    found = runner.summarize(verbose=False)
    print(f"{found.attempted} examples")
    return found.failed


def reference(*, whole: bool) -> None:
    """The FLOPs of models that nobody published, by torch's counter on plain runs, one a line."""
    import torch

    timm, diffusers = import_module("timm"), import_module("diffusers")
    image = torch.zeros(1, 3, 224, 224)
    for name in (
        "mixer_s32_224",
        "deit_tiny_patch16_224",
        "poolformer_s12",
        "mobilevit_xxs",
        "pvt_v2_b0",
        "xcit_nano_12_p16_224",
    ):
        if whole or not name.startswith(OTHERS):
            print(name, counted(timm.create_model(name), image))
    sizes = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2, "sample_size": 16, "patch_size": 2}
    dit, labels = diffusers.DiTTransformer2DModel(in_channels=4, **sizes), torch.zeros(2, dtype=torch.long)
    print("dit", counted(dit, torch.zeros(2, 4, 16, 16), timestep=labels, class_labels=labels))
    unet = diffusers.UNet2DConditionModel(
        sample_size=16, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32, norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    print("unet", counted(unet, torch.zeros(2, 4, 16, 16), 1, torch.zeros(2, 7, 32)))


def counted(module: Any, *args: Any, **kwargs: Any) -> int:
    """By ``FlopCounterMode``, with rules for the attention that runs on a CPU."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from tests.oracles.zoo_count import _rules, _singles

    with FlopCounterMode(display=False, custom_mapping=_rules()) as counter, _singles() as single, torch.no_grad():
        module.eval()(*args, **kwargs)
    return int(counter.get_total_flops()) + int(single.flops)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    importable()
    whole = sys.argv[1] == "whole-page"
    differing = page(whole=whole)
    reference(whole=whole)
    sys.exit(differing != 0)
