"""Build the forward kernels of FlashAttention that one model needs on one card, in minutes instead of hours.

    python -m benchmarks.flash_kernels SOURCES TARGET_FOLDER [--width 128 ...] [--arch 90]

``SOURCES`` is the sdist of flash-attn, packed or unpacked. The result is ``flash_attn_2_cuda``, complete by its
interface: what was not built (backward, float16, other head widths, dropout, windows) raises. The sources are not
changed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

MODULE: Final = "flash_attn_2_cuda"
WIDTHS: Final = (32, 64, 96, 128, 192, 256)
"""The head widths that the interface dispatches to; a width in between uses the next."""
BUILT: Final = "bfloat16_t"
_FUNCTIONS: Final = {"run_mha_fwd_": "fwd", "run_mha_fwd_splitkv_dispatch": "fwd_split", "run_mha_bwd_": ""}
"""Function -> infix of the files that define it; empty if it is not built."""
_FLAGS: Final = (
    "-O3", "-std=c++17", "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__", "-U__CUDA_NO_BFLOAT16_CONVERSIONS__", "--expt-relaxed-constexpr",
    "--expt-extended-lambda", "--use_fast_math",
    # Each of these halves what is compiled of every kernel; the interface refuses what is left out.
    "-DFLASHATTENTION_DISABLE_DROPOUT", "-DFLASHATTENTION_DISABLE_ALIBI", "-DFLASHATTENTION_DISABLE_SOFTCAP",
    "-DFLASHATTENTION_DISABLE_LOCAL", "-DFLASHATTENTION_DISABLE_UNEVEN_K",
)  # fmt: skip


def kernel_files(widths: Sequence[int]) -> list[str]:
    """Return the names of the sources of the kernels for some head widths."""
    return [
        f"flash_{infix}_hdim{width}_bf16_{causal}sm80.cu"
        for infix in _FUNCTIONS.values() if infix
        for width in widths
        for causal in ("", "causal_")
    ]  # fmt: skip


def stubs(widths: Sequence[int]) -> str:
    """Return a source that defines every kernel that is not built: it raises."""
    lines = ['#include "namespace_config.h"', "#include <torch/python.h>", "#include <cutlass/numeric_types.h>"]
    lines += ['#include "flash.h"', "namespace FLASH_NAMESPACE {"]
    for function, infix in _FUNCTIONS.items():
        params = "Flash_fwd_params" if infix else "Flash_bwd_params"
        for dtype in ("half_t", BUILT):
            for width in WIDTHS:
                if infix and dtype == BUILT and width in widths:
                    continue
                why = f"{function}: {dtype} with heads of {width} was not built"
                lines += [
                    f"template<> void {function}<cutlass::{dtype}, {width}, {causal}>({params} &, cudaStream_t) "
                    f'{{ TORCH_CHECK(false, "{why}"); }}'
                    for causal in ("true", "false")
                ]
    return "\n".join([*lines, "}", ""])


def toolkit() -> Path | None:
    """Return the folder of a CUDA toolkit with a compiler, or ``None``."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    compiler = shutil.which("nvcc")
    if compiler:
        homes.insert(0, str(Path(compiler).resolve().parents[1]))
    return next((Path(home) for home in homes if home and (Path(home) / "bin/nvcc").exists()), None)


def unpacked(sources: Path, folder: Path) -> Path:
    """Return the folder of unpacked sources, unpacking only what a build for CUDA needs."""
    if sources.is_dir():
        return sources
    wanted = re.compile(r"[^/]+/csrc/(flash_attn/|cutlass/include/)")
    with tarfile.open(sources) as archive:
        members = [m for m in archive.getmembers() if m.isfile() and wanted.match(m.name)]
        archive.extractall(folder, members, filter="data")
    return folder / members[0].name.split("/")[0]


def build(sources: Path, target: Path, widths: Sequence[int], arch: str, jobs: int) -> Path:
    """Compile and link the module.

    Args:
        sources: sdist of flash-attn, packed or unpacked.
        target: folder of the result and of what is made on the way.
        widths: head widths, of :data:`WIDTHS`.
        arch: compute capability without the point, ``90``.
        jobs: compilers that run at once.

    Raises:
        RuntimeError: there is no compiler, or it failed; the text is the end of its output.
    """
    home = toolkit()
    if home is None:
        raise RuntimeError("there is no nvcc")
    work = target / "build"
    work.mkdir(parents=True, exist_ok=True)
    csrc = unpacked(sources, work) / "csrc"
    own = work / "not_built.cpp"
    own.write_text(stubs(widths), encoding="utf-8")
    code = csrc / "flash_attn/src"
    files = [csrc / "flash_attn/flash_api.cpp", own, *(code / name for name in kernel_files(widths))]
    flags = [*_FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Xcompiler", "-fPIC"]
    flags += [f"-DTORCH_EXTENSION_NAME={MODULE}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    flags += [f"-I{p}" for p in (csrc / "flash_attn", code, csrc / "cutlass/include", *includes(home))]

    def compiled(file: Path) -> Path:
        result = work / f"{file.stem}.o"
        _run([str(home / "bin/nvcc"), *flags, "-c", str(file), "-o", str(result)])
        return result

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compiled, files))
    module = target / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"
    libraries = _torch() / "lib"
    runtime = next((str(p) for folder in _libraries(home) for p in sorted(folder.glob("libcudart.so*"))), "-lcudart")
    linked = target / f"{MODULE}.part"
    _run(
        ["g++", "-shared", *map(str, objects), "-o", str(linked), f"-L{libraries}", runtime]
        + [f"-l{name}" for name in ("torch_python", "torch_cuda", "torch_cpu", "torch", "c10_cuda", "c10")]
    )
    linked.rename(module)
    return module


def includes(home: Path) -> Iterator[Path]:
    """Yield the folders of headers: torch's, Python's, the toolkit's and those of NVIDIA's packages."""
    torch = _torch()
    yield from (torch / "include", torch / "include/torch/csrc/api/include", Path(sysconfig.get_paths()["include"]))
    yield from (p for p in (home / "include", torch.parent / "nvidia/cu13/include") if p.is_dir())


def _libraries(home: Path) -> Iterator[Path]:
    yield from (p for p in (home / "lib64", home / "lib", _torch().parent / "nvidia/cu13/lib") if p.is_dir())


def _torch() -> Path:
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _run(command: Sequence[str]) -> None:
    found = subprocess.run(["nice", *command], capture_output=True, text=True)
    if found.returncode:
        lines = (found.stdout + found.stderr).strip().splitlines()
        raise RuntimeError(f"{Path(command[0]).name} failed: {' | '.join(lines[-6:])}")


def main() -> int:
    """Build and print where the module is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flash_kernels", description=__doc__)
    parser.add_argument("sources", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--width", type=int, action="append", choices=WIDTHS, help="head width (default: 128)")
    parser.add_argument("--arch", default="90", help="compute capability without the point")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    try:
        print(build(options.sources, options.target, options.width or [128], options.arch, options.jobs))
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
