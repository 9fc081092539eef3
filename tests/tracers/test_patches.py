"""Every patch names an attribute that exists and a test; it is undone however the block ends, nested ones too."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from costproof.patches.patch import LoadedPatch, Patch, patched
from costproof.run.doctor import PATCHES

TESTS = Path(__file__).parents[1]


def test_a_record_is_complete() -> None:
    assert {patch.package for patch in PATCHES} == {"torch", "transformers", "torchlens"}
    for patch in PATCHES:
        assert patch.reason, patch.target
        assert (TESTS / patch.test).is_file(), patch.target


@pytest.mark.parametrize(
    "patch", [p for p in PATCHES if p.missing == "error" and not isinstance(p, LoadedPatch)], ids=lambda p: p.target
)
def test_the_target_of_a_patch_exists(patch: Patch) -> None:
    pkgutil.resolve_name(patch.target)


def test_the_list_imports_no_patched_package() -> None:
    code = "import sys, costproof.run.doctor; print({'torch', 'transformers', 'torchlens'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def added(number: int) -> Patch:
    def make(original: Any) -> Any:
        return lambda self: [*original(self), number]

    return Patch("torch:Tensor.tolist", make, "", "")


def test_patches_nest_and_are_undone_after_an_interrupt() -> None:
    numbers = torch.tensor([1, 2])
    before, own = torch.Tensor.tolist, frozenset(vars(torch.Tensor))
    with patched(added(3), added(4)):
        assert numbers.tolist() == [1, 2, 3, 4]
        with pytest.raises(KeyboardInterrupt), patched(added(5)):
            raise KeyboardInterrupt(numbers.tolist() == [1, 2, 3, 4, 5])
        assert numbers.tolist() == [1, 2, 3, 4]
    assert (torch.Tensor.tolist, frozenset(vars(torch.Tensor))) == (before, own)
    assert numbers.tolist() == [1, 2]


def test_a_target_that_a_version_lacks() -> None:
    absent = "torch:Tensor.absent"
    with patched(Patch(absent, lambda original: 1, "", "", missing="skip")):
        assert not hasattr(torch.Tensor, "absent")
    with patched(Patch(absent, lambda original: (original, 1), "", "", missing="create")):
        assert torch.Tensor.absent == (None, 1)  # type: ignore[attr-defined]
    assert not hasattr(torch.Tensor, "absent")
    with pytest.raises(AttributeError), patched(added(3), Patch(absent, lambda original: 1, "", "")):
        pass
    assert torch.tensor([1]).tolist() == [1]
