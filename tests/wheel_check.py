"""Build the sdist, from it the wheel; check that it holds ``costproof`` alone and that its core runs without torch.

Run by ``make wheel``. Going through the sdist is the point: the links at the root of the
repository once made a wheel built that way lose its packages without a word. The core is installed into a
fresh environment, with its own dependencies and no extra, and reads a capture that was made here.
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
from pathlib import Path

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
    _capture(work)
    (work / "claims.yaml").write_text(CLAIMS)
    shutil.copy(ROOT / "docs" / "examples" / "policy.yaml", work)
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", wheel], check=True)
    probe = f"from importlib.util import find_spec; print(*(m for m in {LEFT_OUT!r} if find_spec(m)))"
    yield from (f"the core brings {name}" for name in _run([python, "-c", probe], work).stdout.split())
    for code, command in ON_A_CAPTURE:
        done = _run([folder / "env" / "bin" / "costproof", *command.split()], work)
        if done.returncode != code:
            yield f"costproof {command}: exit {done.returncode}, not {code}\n{done.stderr}"
        elif code and not all(said in done.stderr for said in ("pip install", "torch", "[trace]")):
            yield f"costproof {command} does not say what is missing:\n{done.stderr}"


def _capture(work: Path) -> None:
    """A capture of the real target with small numbers, made with the tracers of this environment."""
    from tests.models.test_config import small_config

    (work / "small.json").write_text(json.dumps(small_config().native()))
    command = "capture deepseek-ocr --config small.json --preset tiny --base-size 256 -o capture.json"
    done = _run([sys.executable, "-m", "costproof", *command.split()], work)
    if done.returncode:
        raise SystemExit(f"costproof {command}: exit {done.returncode}\n{done.stderr}")


def _run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} if "env" in Path(command[0]).parts else None
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    raise SystemExit(main())
