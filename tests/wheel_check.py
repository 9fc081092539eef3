"""Build the sdist, from it the wheel, and check that the wheel installs ``costproof`` alone.

Run by ``make wheel``. Going through the sdist is the point: the links at the root of the
repository once made a wheel built that way lose its packages without a word.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("ledger", "analytic", "models", "tracers", "compare", "reports", "cli")


def main() -> int:
    """Exit status 0 if the wheel is as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, str(ROOT)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (wheel,) = Path(folder).glob("*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        packaged = {n for n in names if n.startswith("costproof/")}
        source = {
            p.relative_to(ROOT / "src").as_posix()
            for p in (ROOT / "src/costproof").rglob("*")
            if p.is_file() and "__pycache__" not in p.parts
        }
        problems = [f"missing in the wheel: {n}" for n in sorted(source - packaged)]
        problems += [f"not in the sources: {n}" for n in sorted(packaged - source)]
        problems += [f"no package {room}" for room in ROOMS if f"costproof/{room}/__init__.py" not in packaged]
        problems += [f"outside costproof: {n}" for n in names if not n.startswith(("costproof/", "costproof-")) and n]
        print("\n".join(problems) or f"{wheel.name}: {len(packaged)} files, costproof alone")
        checked = subprocess.run(
            [Path(sys.executable).parent / "check-wheel-contents", "--toplevel", "costproof", wheel], check=False
        )
        return 1 if problems or checked.returncode else 0


if __name__ == "__main__":
    raise SystemExit(main())
