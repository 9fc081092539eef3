"""Own numbers: the grammar of the option, CSV files, and what is said of bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from costproof.claims.reading import own_claims
from costproof.claims.types import Amount, PublishedClaim
from costproof.ledger.errors import Problems
from tests.conftest import Golden
from tests.support.running import costproof, files

PLACES = {"sam": ["global", "crops"], "clip": ["global", "crops"], "decode": ["steps"]}


def one(text: str, default: str = "total") -> PublishedClaim:
    """The claim that one number is."""
    (file,) = own_claims([text], PLACES, default)
    (claim,) = file.claims
    assert file.title == claim.id
    return claim


def test_a_number_alone_is_about_everything() -> None:
    claim = one("mine=571.92G")
    # Two decimals of a G: half of 10,000,000 to either side.
    assert claim.value == Amount("571.92G", 571_915_000_000, 571_925_000_000)
    assert (claim.id, claim.stage, claim.invocation, claim.metric, claim.conventions) == (
        "mine", "total", "", "flops", {},
    )  # fmt: skip
    assert one("mine=571.92G", default="sam").stage == "sam"


@pytest.mark.parametrize(
    ("text", "place", "unit", "low", "high"),
    [
        ("a@sam=7", ("sam", ""), "", 7, 7),
        ("a@sam:crops=7 MAC", ("sam", "crops"), "mac", 7, 7),
        ("a @ decode : steps = 1,000 macs", ("decode", "steps"), "mac", 1000, 1000),
        ("two words@sam=2GFLOP", ("sam", ""), "flop", 1_500_000_000, 2_500_000_000),
        ("a@total=1e3FLOPs", ("total", ""), "flop", 500, 1500),
    ],
)
def test_the_grammar(text: str, place: tuple[str, str], unit: str, low: int, high: int) -> None:
    claim = one(text)
    assert (claim.stage, claim.invocation) == place
    assert claim.conventions == ({"unit": unit} if unit else {})
    assert isinstance(claim.value, Amount)
    assert (claim.value.low, claim.value.high) == (low, high)


def test_a_table(tmp_path: Path) -> None:
    table = tmp_path / "n.csv"
    table.write_text(
        "\ufeffname,stage,value,unit,invocation\n"
        'a,sam,"571,938,903,808",mac,crops\n'
        "\n"
        "b , clip, 77.68 G,,\n"
        "a,total,3G,flop,\n",
        encoding="utf-8",
    )
    found = own_claims([str(table), "b@decode=5"], PLACES)
    assert [f.title for f in found] == ["a", "b"]
    assert [(c.stage, c.invocation, c.conventions) for c in found[0].claims] == [
        ("sam", "crops", {"unit": "mac"}), ("total", "", {"unit": "flop"}),
    ]  # fmt: skip
    assert [c.where.rpartition("/")[2] for f in found for c in f.claims] == [
        "n.csv, line 2", "n.csv, line 5", "n.csv, line 4", "--add b@decode=5",
    ]  # fmt: skip
    assert found[0].claims[0].value == Amount("571,938,903,808", 571_938_903_808, 571_938_903_808)


def test_one_place_has_one_number_of_a_name() -> None:
    with pytest.raises(Problems, match="given twice"):
        own_claims(["a@sam=1", "a@sam=2"], PLACES)
    assert len(own_claims(["a@sam=1", "a@sam:crops=2", "b@sam=3"], PLACES)) == 2


BAD = {
    "own number without a value": (("--add", "mine"), None),
    "own number that is none": (("--add", "mine@sam=lots"), None),
    "own number of half a FLOP": (("--add", "mine@sam=571.92"), None),
    "own number at unknown places": (("--add", "a@sma=1", "--add", "b@sam:page=1", "--add", "c@total:global=1"), None),
    "own table missing": (("--add", "n.csv"), None),
    "own table that is empty": (("--add", "n.csv"), ""),
    "own table without a row": (("--add", "n.csv"), "name,stage,value\n"),
    "own table without a column": (("--add", "n.csv"), "name,value\na,1\n"),
    "own table with an unknown column": (("--add", "n.csv"), "name,stage,value,flops\na,sam,1,1\n"),
    "own table with a column twice": (("--add", "n.csv"), "name,stage,value,value\na,sam,1,1\n"),
    "own table that is no CSV": (("--add", "n.csv"), 'name,stage,value\na,sam,"1\n'),
    "own table with many problems": (
        ("--add", "n.csv"),
        "name,stage,value,unit\na,sam,1,234,flop\n,sam,1,flop\na,,,flop\na,sam,1,gflop\nb,sam,1G,\n\nb,sam,2G,\nc,sma,1,\n",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_numbers(name: str, tmp_path: Path, golden: Golden) -> None:
    arguments, table = BAD[name]
    if table is not None:
        (tmp_path / "n.csv").write_text(table, encoding="utf-8")
    before = files(tmp_path)
    result = costproof("counters", "deepseek-ocr", *arguments, "-o", "out.md", cwd=tmp_path)
    assert (result.code, result.stdout) == (2, "")
    golden(f"bad-input/{name.replace(' ', '-')}.txt", result.stderr)
    assert files(tmp_path) == before


def test_the_output_is_not_the_table(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("name,stage,value\na,sam,1\n")
    result = costproof("counters", "deepseek-ocr", "--add", "n.csv", "--only", "nobody", "-o", "n.csv", cwd=tmp_path)
    assert result.code == 2
    assert (tmp_path / "n.csv").read_text() == "name,stage,value\na,sam,1\n"
