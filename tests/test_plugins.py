"""One registry for everything that can be added: lazy, open to other distributions, strict about names."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from costproof.foreign import skipped
from costproof.ledger.errors import BadInput
from costproof.models import registry as models
from costproof.opgraph.rules import registry
from costproof.opgraph.rules.files import versions_in_force
from costproof.plugins import Plugin, Registry, lazy
from tests.support.running import costproof
from tests.support.toy import toy
from tests.support.written import write_capture

OURS: Registry[int] = Registry(
    "shapes",
    "shape",
    (Plugin("Square", "four sides", lazy("costproof.no_such_module:SQUARE")),),
    int,
    "costproof shapes",
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
    shapes: Registry[str] = Registry("shapes", "shape", (Plugin("x", "", lazy("costproof.ledger.run:RANDOM")),))
    assert shapes.load("x") == "random"


def test_a_clash_of_two_others_names_both_and_harms_no_other_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mine", "other"):
        points = f"disc = {name}_shapes:SIDES\nfine_{name} = {name}_shapes:SIDES\n"
        distribution(tmp_path / name, name, points, "SIDES = 7\n", monkeypatch)
    assert list(OURS.all()) == ["Square", "disc", "fine_mine", "fine_other"]
    with pytest.raises(BadInput, match="two distributions offer the same shape") as caught:
        OURS.load("disc")
    assert (caught.value.where, caught.value.got) == ("disc", "mine and other")
    assert list(OURS.listed()) == ["Square", "fine_mine", "fine_other"]
    assert [e.line for e in skipped()] == ["two distributions offer the same shape; in disc; got mine and other"]


def test_a_clash_with_ours_leaves_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path, "mine", "Square = mine_shapes:SIDES\n", "SIDES = 7\n", monkeypatch)
    assert [(p.name, p.owner) for p in OURS.all().values()] == [("Square", "costproof")]
    assert [e.got for e in skipped()] == ["costproof and mine"]


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
        ("1 / 0\n", "ZeroDivisionError: division by zero (broken_shapes.py:1) (mine)"),
        ("import sys; sys.exit(0)\n", "SystemExit: 0 (broken_shapes.py:1) (mine)"),
        ("import os; os._exit(9)\n", "SystemExit: os._exit (broken_shapes.py:1) (mine)"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt (broken_shapes.py:1) (mine)"),
        ("x x\n", "SyntaxError: invalid syntax (broken_shapes.py, line 1) (broken_shapes.py:1) (mine)"),
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


BROKEN = """
from pathlib import Path
from costproof.estimate.hardware import Device
from costproof.models.families.bert import TARGET

class NeedsAnInstance:
    default, from_file = TARGET.default, TARGET.from_file
    def settings(self): return ()
    def presets(self): return ()

class Lacks:
    @staticmethod
    def default(): ...

class Returns:
    model_types = ("zebra",)
    default = staticmethod(lambda: 5)
    from_file = staticmethod(lambda path: 5)
    settings = staticmethod(lambda: [1])
    presets = staticmethod(lambda: 1 / 0)
    serves = staticmethod(lambda config: 1 / 0)
    reads = staticmethod(lambda folder: 1 / 0)
    folder_holds = staticmethod(lambda: "nothing")
    from_folder = staticmethod(lambda folder, trusted: 5)

class Garbage:
    model_types = 5
    default = from_file = settings = presets = staticmethod(lambda *_: ())

number = 5
"""
POINTS = """
[costproof.targets]
needs = broken_things:NeedsAnInstance
lacks = broken_things:Lacks
returns = broken_things:Returns
garbage = broken_things:Garbage
exits = broken_exits:X
odd name\x1b = broken_things:number
bad value = not a place
bert = broken_things:number
[costproof.rules]
broken_rules = broken_rules
[costproof.counters]
five = broken_things:number
[costproof.outputs]
five = broken_things:number
raising = broken_output:OUTPUT
[costproof.hardware]
five = broken_things:number
"""
RULES = """
import costproof
@costproof.operator_rule("broken::half")
def half(op): ...
@costproof.operator_rule("aten::mm")
def twice(op): ...
"""
OUTPUT = """
from costproof.reports.outputs import Output
OUTPUT = Output("raising", "x.txt", "raises", data=lambda report: 1 / 0, write=lambda: str)
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed distribution of which nothing can be used."""
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    code = {"things": BROKEN, "exits": "import os\nos._exit(9)\n", "rules": RULES, "output": OUTPUT}
    for name, text in code.items():
        (tmp_path / f"broken_{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, f"broken_{name}", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    registry._load.cache_clear()
    yield tmp_path
    registry._load.cache_clear()


def test_a_look_up_of_a_configuration_or_a_folder_asks_the_others(broken: Path) -> None:
    assert models._family({"model_type": "zebra"}) is None
    skips = "\n".join(e.line for e in skipped())
    assert all(name in skips for name in (*ALL, "serves() of the target returns = broken_things:Returns (broken)"))
    with pytest.raises(BadInput, match="no target reads this folder"):
        models._reader(broken)
    assert "reads() of the target returns" in "\n".join(e.line for e in skipped())


ALL = ("needs", "lacks", "garbage", "exits", "odd name", "bad value", "bert")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("targets", ALL),
        ("workloads", (*ALL, "returns")),
        # cli/test_machine.py has the lines of the doctor.
        pytest.param("doctor", (*ALL, "five", "broken_rules"), marks=pytest.mark.thorough),
        ("ops", ("broken_rules",)),
        ("machines", ("five",)),
        ("render --list", ("five",)),
        ("report bert --help", ()),
        ("--help", ()),
        ("roofline bert --on l4", ()),
    ],
)
def test_a_broken_plug_in_harms_no_other(
    line: str, named: tuple[str, ...], broken: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = costproof(*line.split(), cwd=broken)
    assert result.code == 0, result.stderr
    assert result.stdout
    for name in named:
        where, said = ("cannot be loaded", result.stdout) if line == "doctor" else ("skipped", result.stderr)
        assert re.search(rf"{name}.*broken.*{where}|{where}: .*{name}.*broken", said), (name, said)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ("workloads needs", "settings(): missing a required argument: 'self'; presets(): missing"),
        ("workloads lacks", "no method from_file(); no method settings(); no method presets() (broken)"),
        ("workloads garbage", "model_types is int, not a tuple of names"),
        ("workloads exits", "SystemExit: os._exit (broken_exits.py:2) (broken)"),
        ("workloads returns", "ZeroDivisionError: division by zero (broken_things.py:20)"),
        ("explain returns forward", "a tuple"),
        ("counters bert --only five", "a int, not a Counter (broken)"),
        ("machine five", "a int, not a Device (broken)"),
        ("render toy.json -f five", "a int, not a Output (broken)"),
        ("render toy.json -f raising", "ZeroDivisionError: division by zero (broken_output.py:3)"),
    ],
)
def test_a_command_that_needs_a_broken_plug_in_names_it_and_its_owner(line: str, got: str, broken: Path) -> None:
    write_capture(broken / "toy.json", toy())
    result = costproof(*line.split(), cwd=broken)
    assert (result.code, result.stdout) == (2, ""), result.stderr
    assert got in result.stderr
    assert "broken" in result.stderr


def test_rules_of_another_distribution_are_among_the_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate passes no change of them; nothing of them is imported for that."""
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[costproof.rules]\nmine = mine_rules.all\nnone = no_such_module\n")
    (tmp_path / "mine_rules").mkdir()
    (tmp_path / "mine_rules" / "__init__.py").write_text("1 / 0\n")
    file = tmp_path / "mine_rules" / "all.py"
    file.write_text("1 / 0\n")
    assert "rules" not in versions_in_force()
    monkeypatch.syspath_prepend(tmp_path)
    assert versions_in_force() == {"rules": f"all.py {sha256(b'1 / 0' + bytes([10])).hexdigest()[:12]}"}
    file.write_text("2 / 0\n")
    assert versions_in_force() == {"rules": f"all.py {sha256(b'2 / 0' + bytes([10])).hexdigest()[:12]}"}
