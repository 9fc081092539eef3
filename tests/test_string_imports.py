"""No room imports a room above it by a string: import-linter does not see such imports."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULE = re.compile(r"costproof\.(\w+)(\.\w+)*(:\w+)?")


def ranks() -> dict[str, int]:
    """Room -> layer, 0 at the top."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (c["layers"] for c in data["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    return {room.strip(): rank for rank, layer in enumerate(layers) for room in layer.split("|")}


def test_strings_name_no_module_of_a_room_above() -> None:
    rank = ranks()
    found = []
    for path in sorted((ROOT / "src/costproof").rglob("*.py")):
        room = path.relative_to(ROOT / "src/costproof").parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = MODULE.fullmatch(node.value)
                if named and room in rank and rank.get(named[1], rank[room]) < rank[room]:
                    found.append(f"{path.name}:{node.lineno}: {node.value}")
    assert found == []
