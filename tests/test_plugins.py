"""One registry for everything that can be added: lazy, open to other distributions, strict about names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from costproof.ledger.errors import BadInput
from costproof.plugins import Plugin, Registry, at

OURS: Registry[int] = Registry(
    "shapes", "shape", (Plugin("Square", "four sides", at("costproof.no_such_module:SQUARE")),), int, "costproof shapes"
)


def distribution(folder: Path, name: str, points: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution with one module and entry points of the group ``costproof.shapes``."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[costproof.shapes]\n{points}")
    (folder / f"{name}_shapes.py").write_text(code)
    monkeypatch.syspath_prepend(folder)


def test_names_come_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = "zigzag = mine_shapes:SIDES\nline = mine_shapes:SIDES\n"
    distribution(tmp_path, "mine", points, "SIDES = 7\n", monkeypatch)
    found = OURS.all()
    assert [(p.name, p.owner, p.what) for p in found.values()] == [
        ("Square", "costproof", "four sides"),
        ("line", "mine", "mine_shapes:SIDES"),
        ("zigzag", "mine", "mine_shapes:SIDES"),
    ]
    assert "mine_shapes" not in sys.modules
    assert OURS.load("zigzag") == 7
    del sys.modules["mine_shapes"]


def test_ours_are_found_by_their_place() -> None:
    shapes: Registry[str] = Registry("shapes", "shape", (Plugin("x", "", at("costproof.ledger.run:RANDOM")),))
    assert shapes.load("x") == "random"


@pytest.mark.parametrize("names", [("mine", "other"), ("mine",)])
def test_a_clash_names_both_owners(names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = "Square" if len(names) == 1 else "disc"
    for name in names:
        distribution(tmp_path / name, name, f"{point} = {name}_shapes:SIDES\n", "SIDES = 7\n", monkeypatch)
    with pytest.raises(BadInput) as caught:
        OURS.all()
    assert caught.value.where == point
    assert caught.value.got == ("mine and other" if len(names) == 2 else "costproof and mine")


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("square", "did you mean Square?"),
        ("SQUARES", "did you mean Square?"),
        ("?", "see: costproof shapes"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(name: str, fix: str) -> None:
    with pytest.raises(BadInput, match="there is no such shape") as caught:
        OURS.load(name)
    assert (caught.value.where, caught.value.expected, caught.value.fix) == (name, "Square", fix)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("SIDES = 'seven'\n", "a str, not a int (mine)"),
        ("1 / 0\n", "ZeroDivisionError: division by zero (mine)"),
        ("", "AttributeError: module 'broken_shapes' has no attribute 'SIDES' (mine)"),
    ],
)
def test_what_cannot_be_loaded_says_whose_it_is(
    code: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(tmp_path, "mine", "disc = broken_shapes:SIDES\n", "", monkeypatch)
    (tmp_path / "broken_shapes.py").write_text(code)
    with pytest.raises(BadInput, match="a shape of another distribution cannot be loaded") as caught:
        OURS.load("disc")
    sys.modules.pop("broken_shapes", None)
    assert (caught.value.where, caught.value.got) == ("disc = broken_shapes:SIDES", why)
