"""What the optional parts need, and what is said where it is missing."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from costproof.ledger import environment
from costproof.ledger.errors import Incomplete

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
METADATA = ["click>=8", "a.b>=1.2,<3; extra == 'trace'", "c-d; extra == 'trace'", 'e==4; extra == "image"']


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def told(*there: str, lines: list[str] | None = METADATA) -> None:
        monkeypatch.setattr(environment, "requires", lambda name: lines)
        monkeypatch.setattr(environment, "installed", lambda name: "1" if name in there else None)

    return told


def test_the_advice_names_the_packages_that_are_missing(metadata: Callable[..., None]) -> None:
    metadata()
    assert environment.advice("trace") == "pip install 'a.b>=1.2,<3' 'c-d'"
    metadata("a.b")
    assert environment.advice("trace") == "pip install 'c-d'"
    metadata("a.b", "c-d")
    assert environment.advice("trace") == "pip install 'a.b>=1.2,<3' 'c-d'"


def test_the_header_names_what_orders_an_einsum_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("3.4", None):
        monkeypatch.setattr(environment, "installed", {"opt_einsum": version}.get)
        assert environment.environment().get("opt_einsum") == version


def test_a_clone_that_is_not_installed_is_told_to_install_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment, "requires", requires)
    assert environment.advice("trace") == "pip install -e '.[trace]' in the clone"
    environment.require("trace", "a proof")


def test_all_that_is_missing_is_said_at_once(metadata: Callable[..., None]) -> None:
    metadata()
    with pytest.raises(Incomplete) as caught:
        environment.require("trace", "a proof", otherwise="or rest")
    assert (caught.value.what, caught.value.got) == ("a proof needs packages that are not installed", "no a.b, no c-d")
    assert caught.value.fix == "pip install 'a.b>=1.2,<3' 'c-d'; or rest"
    metadata("a.b", "c-d")
    environment.require("trace", "a proof")


def test_only_what_a_step_needs_is_asked_for(metadata: Callable[..., None]) -> None:
    metadata("a.b")
    environment.require("trace", "a proof", "a.b")
    with pytest.raises(Incomplete) as caught:
        # Metadata of an older installation do not know a newer extra: its packages are asked for all the same.
        environment.require("newer", "a picture", "c-d", "a.b")
    assert (caught.value.got, caught.value.fix) == ("no c-d", "pip install 'c-d'")


def test_the_core_is_free_of_what_counts() -> None:
    core = {line.split(">")[0] for line in PROJECT["dependencies"]}
    assert core == {"click", "numpy", "pandas", "pydantic", "pyyaml", "rich", "sympy"}
    assert {"trace", "counters", "image", "all"} <= PROJECT["optional-dependencies"].keys()
