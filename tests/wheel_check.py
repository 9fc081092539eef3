"""Build the sdist, from it the wheel; check that it holds ``costproof`` alone and that its core runs without torch.

Run by ``make wheel``. Going through the sdist is the point: the links at the root of the
repository once made a wheel built that way lose its packages without a word. The core is installed into a
fresh environment that links its own dependencies from this one and no extra, and reads a capture that was made here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.toy import toy
from tests.support.written import write_capture

ROOT = Path(__file__).resolve().parent.parent
ROOMS = sorted(p.parent.name for p in (ROOT / "src/costproof").glob("*/__init__.py"))
LEFT_OUT = ("torch", "transformers", "torchlens", "fvcore", "PIL")
"""What the core must do without."""

ON_A_CAPTURE = (
    (0, "compare capture.json"),
    (0, "render capture.json -f static-md -o static.md"),
    (0, "render capture.json -f html -o page.html"),
    (0, "graph capture.json -f svg -o pictures"),
    (0, "explain deepseek-ocr prefill --module *self_attn"),
    (0, "check claims.yaml deepseek-ocr"),
    (0, "capture deepseek-ocr --sources analytic -o analytic.json"),
    (0, "capture deepseek-ocr --sources analytic -f baseline -o base.json"),
    (0, "diff base.json analytic.json -f md"),
    (0, "gate base.json analytic.json --policy policy.yaml"),
    (0, "roofline analytic.json --on h100-sxm -f svg -o roofline.svg"),
    (0, "fits deepseek-ocr --on h100-sxm"),
    (0, "machines"),
    (0, "doctor"),
    (0, "targets"),
    (0, "--help"),
    (3, "report deepseek-ocr"),
    (3, "counters deepseek-ocr"),
    (3, "prove deepseek-ocr"),
    (3, "derive deepseek-ocr sam"),
    (3, "machine --measure"),
)
"""``(exit code, command)``. Where packages are missing the command says which, and how they come."""

FORKS = """
import json, os, sys
import click, numpy, pandas, pydantic, rich, sympy, yaml
answers = []
for command in sys.argv[1:]:
    child = os.fork()
    if not child:
        os.dup2(os.open("stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        sys.argv = ["costproof", *command.split()]
        from costproof.cli.entry import main
        os._exit(main())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    answers.append((code, open("stderr").read()))
json.dump(answers, sys.stdout)
"""
"""Runs each argument as a command, in a fork of a process that has imported what others wrote and nothing of ours."""

CLAIMS = """
costproof_claims: 1
claims:
  - {stage: projector, params: 2622720}
"""


def main() -> int:
    """Exit status 0 if the wheel is as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "built"
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", built, str(ROOT)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (wheel,) = built.glob("*.whl")
        problems = [*content(wheel), *core(wheel, Path(folder) / "core")]
        print("\n".join(problems) or f"{wheel.name}: costproof alone, and its core runs without torch")
        checked = subprocess.run(
            [Path(sys.executable).parent / "check-wheel-contents", "--toplevel", "costproof", wheel], check=False
        )
        return 1 if problems or checked.returncode else 0


def content(wheel: Path) -> Iterator[str]:
    """What the wheel has too much or too little."""
    names = zipfile.ZipFile(wheel).namelist()
    packaged = {n for n in names if n.startswith("costproof/")}
    source = {
        p.relative_to(ROOT / "src").as_posix()
        for p in (ROOT / "src/costproof").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    yield from (f"missing in the wheel: {n}" for n in sorted(source - packaged))
    yield from (f"not in the sources: {n}" for n in sorted(packaged - source))
    yield from (f"no package {room}" for room in ROOMS if f"costproof/{room}/__init__.py" not in packaged)
    yield from (f"outside costproof: {n}" for n in names if not n.startswith(("costproof/", "costproof-")) and n)


def core(wheel: Path, folder: Path) -> Iterator[str]:
    """What does not run where the core alone is installed."""
    work = folder / "work"
    work.mkdir(parents=True)
    write_capture(work / "capture.json", toy())
    (work / "claims.yaml").write_text(CLAIMS)
    shutil.copy(ROOT / "docs" / "examples" / "policy.yaml", work)
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    link_requirements(wheel, site)
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
    probe = f"from importlib.util import find_spec; print(*(m for m in {LEFT_OUT!r} if find_spec(m)))"
    yield from (f"the core brings {name}" for name in _run([python, "-c", probe], work).stdout.split())
    installed = _run([folder / "env" / "bin" / "costproof", "--version"], work)
    if installed.returncode or "costproof" not in installed.stdout:
        yield f"costproof --version: exit {installed.returncode}\n{installed.stderr}"
    answers = _run([python, "-c", FORKS, *(command for _, command in ON_A_CAPTURE)], work)
    if answers.returncode:
        yield answers.stderr
        return
    for (code, command), (ended, said) in zip(ON_A_CAPTURE, json.loads(answers.stdout), strict=True):
        if ended != code:
            yield f"costproof {command}: exit {ended}, not {code}\n{said}"
        elif code and not all(word in said for word in ("pip install", "torch", "[trace]")):
            yield f"costproof {command} does not say what is missing:\n{said}"


def link_requirements(wheel: Path, site: Path) -> None:
    """Link the required distributions of a wheel, and theirs, from this environment; none of an extra."""
    names = [f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info/"]
    waiting = list(PathDistribution(zipfile.Path(wheel, names[0])).requires or ())
    while waiting:
        wanted = Requirement(waiting.pop())
        if wanted.name in names or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        names.append(wanted.name)
        found = distribution(wanted.name)
        for top in {Path(file).parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(Path(str(found.locate_file(top))))
        waiting += found.requires or ()


def _run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} if "env" in Path(command[0]).parts else None
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    raise SystemExit(main())
