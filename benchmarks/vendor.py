"""The vendor's snapshot on the CPU: a plain forward, plain TorchLens, and costproof's whole report, each alone.

``python -m benchmarks.vendor FOLDER [plain|torchlens|report …]`` in the environment of ``make vendor-env``; runs the
code in FOLDER. Prints wall time, processor time (what is left of it when others use the machine) and peak memory.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

MODES = ("plain", "torchlens", "report")


def main(arguments: list[str]) -> None:
    """Measure the modes one after the other, each in a process of its own."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return
    if arguments[0] == "--one":
        print(_measure(Path(arguments[1]), arguments[2]))
        return
    folder, modes = Path(arguments[0]).resolve(), arguments[1:] or list(MODES)
    print("| what | wall s | processor s | peak GB |\n|---|---|---|---|", flush=True)
    for mode in modes:
        command = [sys.executable, "-m", "benchmarks.vendor", "--one", str(folder), mode]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        print(f"| {mode} | {done.stdout.splitlines()[-1]} |", flush=True)


def _measure(folder: Path, mode: str) -> str:
    run = _report(folder) if mode == "report" else _forward(folder, trace=mode == "torchlens")
    before, start = _processor(), time.perf_counter()
    run()
    wall, processor = time.perf_counter() - start, _processor() - before
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return f"{wall:.0f} | {processor:.0f} | {peak * 1024 / 1e9:.1f}"


def _processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _report(folder: Path) -> Callable[[], object]:
    """The whole command: three sources, comparison, files."""
    import costproof

    return lambda: costproof.report(str(folder), out=Path(tempfile.mkdtemp()), trust_remote_code=True)


def _forward(folder: Path, *, trace: bool) -> Callable[[], object]:
    """One prefill of the default workload, with the two patches that a run here needs."""
    import torch

    from costproof.models.families.deepseek_ocr import vendor, vendor_code
    from costproof.models.families.deepseek_ocr.vendor import RemoteCodeOcr
    from costproof.weights.random_values import fill_random

    target = RemoteCodeOcr.from_folder(folder, trusted=True)
    workload = target.workload()
    model = vendor_code.build_vendor(target.snapshot, workload.dtype, "cpu")
    fill_random(model, 0)
    kwargs = vendor.page_inputs(target.config, workload, 0, torch.device("cpu"))

    def run() -> object:
        with torch.no_grad(), vendor_code.patched(vendor_code.patches_for(model)):
            if not trace:
                return model(**kwargs)
            import torchlens
            from torchlens.options import CaptureOptions

            # With its defaults it keeps every activation, and stops at its own limit of memory.
            return torchlens.trace(model, [], kwargs, capture=CaptureOptions(layers_to_save="none"))

    return run


if __name__ == "__main__":
    main(sys.argv[1:])
