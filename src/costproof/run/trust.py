"""Which Python code a run executes, and who said so: a file may name code, but only the user lets it run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from costproof.ledger.errors import BadInput
from costproof.models.registry import read_address

CODE: Final = ("target", "rules", "trust_remote_code")
"""The choices of a run that name code."""


def makes_module(target: str) -> bool:
    """Return whether a target is a function of the user's, which runs to make the module."""
    return read_address(target).kind in ("file", "module")


def loading_runs_code(target: str, *, trusted: bool) -> bool:
    """Return whether to load a target is to run code that is neither installed nor ours."""
    return makes_module(target) or (trusted and read_address(target).kind != "name")


def code_named(choices: Mapping[str, Any]) -> dict[str, str]:
    """Return the choices that let code run, each as the command line spells it."""
    target, rules = choices.get("target"), choices.get("rules") or ()
    found = {"target": shlex.quote(target)} if isinstance(target, str) and makes_module(target) else {}
    if rules:
        found["rules"] = " ".join(f"--rules {shlex.quote(str(file))}" for file in rules)
    return {**found, **({"trust_remote_code": "--trust-remote-code"} if choices.get("trust_remote_code") else {})}


def refused_code(in_file: Mapping[str, Any], given: Mapping[str, Any], where: str) -> Iterator[BadInput]:
    """Yield an error for each choice of a file that lets code run and that the user did not make.

    Args:
        in_file: the choices of the file.
        given: those of the command line, or of a call, which replace the file's.
        where: the file.
    """
    for name, spelled in code_named({k: v for k, v in in_file.items() if not given.get(k)}).items():
        yield BadInput(
            "a file does not decide which code runs",
            where=f"$.{name} in {where}",
            expected=f"{spelled} on the command line too, or {name}= in Python",
            fix=f"if you trust this code, add {spelled}",
        )
