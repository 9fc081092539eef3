"""The safetensors files of a checkpoint folder; none of them is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from costproof.ledger.errors import BadInput, CostproofError
from costproof.ledger.files import read_json

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"


def shards(folder: Path, problems: list[CostproofError]) -> dict[Path, set[str] | None]:
    """The files of a checkpoint, each with the tensors that the index promises (``None`` without an index).

    Args:
        problems: where missing shards are told.

    Raises:
        BadInput: the folder holds no checkpoint, or its index is none.
    """
    fix = f"a folder with {SINGLE} or {INDEX}; --weights random needs none"
    if not folder.is_dir():
        raise BadInput("there is no such folder", where=f"--weights {folder}", expected=fix)
    index = folder / INDEX
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise BadInput("the folder holds no checkpoint", where=f"--weights {folder}", expected=fix)
        return dict.fromkeys(files)
    try:
        weight_map = read_json(index, what="index")["weight_map"]
        found: dict[Path, set[str] | None] = {}
        for name, file in sorted(weight_map.items()):
            # A name with a path in it would reach outside the folder.
            listed = found.setdefault(folder / Path(str(file)).name, set())
            assert listed is not None
            listed.add(name)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput("this is not an index of a checkpoint", where=str(index), expected="a weight_map") from error
    if found and not any(s.is_file() for s in found):
        raise BadInput(
            "the folder holds the index of a checkpoint and none of its shards",
            where=f"--weights {folder}",
            expected=", ".join(s.name for s in sorted(found)[:3]) + (", …" if len(found) > 3 else ""),
            fix="download the shards as well, not the pointers to them; --weights random needs none",
        )
    for shard in [s for s in found if not s.is_file()]:
        problems.append(BadInput("a shard is missing", where=str(shard), expected=f"{len(found[shard] or ())} tensors"))
        del found[shard]
    return dict(sorted(found.items()))
