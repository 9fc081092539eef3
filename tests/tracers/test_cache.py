"""Exports that are kept: found again only where nothing that decides them has changed, and made anew when damaged."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch import nn

from costproof.algebra.symbols import parse
from costproof.models.specs import ExportJob, SymbolicSize
from costproof.opgraph.account import account
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import OpCall, Value, from_plain, to_plain
from costproof.tracers import cache, fingerprint
from costproof.tracers.cache import FOLDER, cache_enabled, cached_export
from costproof.tracers.exported import Exported, export_graph
from tests.tracers.small import Wrapper


def model(width: int = 8, eps: float = 1e-5, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A norm and a linear layer on meta: classes of an installed package alone."""
    with torch.device("meta"):
        return nn.Sequential(nn.LayerNorm(6, eps), nn.Linear(6, width), nn.GELU()).to(dtype)


def job(module: nn.Module | None = None, rows: int = 5, symbol: str = "n", **changes: Any) -> ExportJob:
    module = model() if module is None else module
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    args = {"input": torch.empty(3, rows, 6, device="meta", dtype=dtype)}
    sizes = [SymbolicSize(("input",), 0, symbol)]
    return ExportJob("toy", "stage", ("once",), nn.Sequential(module), {"0": "toy"}, args, sizes, **changes)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one test."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "exports"))
    return tmp_path / "exports"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is really exported."""
    found: list[str] = []

    def counting(one: ExportJob) -> Exported:
        found.append(one.id)
        return export_graph(one)

    monkeypatch.setattr(cache, "export_graph", counting)
    return found


def kept(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def test_what_was_exported_is_not_exported_again(made: list[str]) -> None:
    first, again = cached_export(job()), cached_export(job())
    assert made == ["toy"]
    for found in (first, again):
        nodes = account(cost_graph(found.graph), lambda module, call: ("stage", "once")).nodes
        # Two FLOPs for each of n x 5 rows of 6 features made 8.
        assert {n.module: n.exprs["flops"] for n in nodes if "flops" in n.exprs} == {"toy.1": "480*n"}
    assert (again.graph, again.parameters, again.guards) == (first.graph, first.parameters, first.guards)
    assert again.parameters["toy.1.weight"] == ((8, 6), "float32")


CHANGES: dict[str, Callable[[], ExportJob]] = {
    "a width": lambda: job(model(width=9)),
    "a number beside the tensors": lambda: job(model(eps=1e-3)),
    "a dtype": lambda: job(model(dtype=torch.bfloat16)),
    "rows": lambda: job(rows=4),
    "a symbol": lambda: job(symbol="m"),
    "training": lambda: job(model().train(False)),
    "a part": lambda: job(nn.Sequential(*model().children(), nn.ReLU())),
    "a place": lambda: job(nn.Sequential(model())),
    "calls": lambda: job(own_calls=frozenset({"toy.1"})),
    "shared parameters": lambda: job(tied()),
}


def tied() -> nn.Module:
    with torch.device("meta"):
        first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    return nn.Sequential(first, second)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_has_another_name(change: Callable[[], ExportJob]) -> None:
    names = [fingerprint.fingerprint(j) for j in (job(), job(), change())]
    assert None not in names
    assert names[0] == names[1] != names[2]


def test_parameters_that_are_one_are_told_from_two_alike() -> None:
    with torch.device("meta"):
        apart = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    assert fingerprint.fingerprint(job(tied())) != fingerprint.fingerprint(job(apart))


def test_code_that_was_put_in_place_of_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint.fingerprint(job())
    monkeypatch.setattr(nn.GELU, "forward", lambda self, x: x * 2)
    assert fingerprint.fingerprint(job()) != before


def test_a_function_that_a_forward_calls_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As packages do that bring faster functions for a model of another package."""
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama

    config = LlamaConfig(hidden_size=6, num_attention_heads=1, num_hidden_layers=1, intermediate_size=8, vocab_size=4)
    with torch.device("meta"):
        attention = nn.Sequential(modeling_llama.LlamaAttention(config, 0))
    before = fingerprint.fingerprint(job(attention))
    assert before == fingerprint.fingerprint(job(attention)) != None  # noqa: E711
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, *_: (q * 2, k))
    assert fingerprint.fingerprint(job(attention)) != before


def test_a_function_of_torch_that_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint.fingerprint(job())
    monkeypatch.setattr(nn.functional, "gelu", lambda x, approximate: x * 2)
    assert fingerprint.fingerprint(job()) != before


def test_a_package_whose_version_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "installed", lambda package: None)
    fingerprint._carrier.cache_clear()
    assert fingerprint.fingerprint(job()) is None
    fingerprint._carrier.cache_clear()


@pytest.mark.parametrize("what", ["package", "variable", "own code", "order of einsum"])
def test_versions_and_the_environment(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint.fingerprint(job())
    if what == "package":
        monkeypatch.setattr(fingerprint, "environment", lambda: {"torch": "0.0"})
    elif what == "variable":
        monkeypatch.setenv("TORCH_SOMETHING", "1")
    elif what == "order of einsum":
        module: Any = torch.backends.opt_einsum
        monkeypatch.setattr(module.m, "enabled", not module.enabled)
    else:
        monkeypatch.setattr(fingerprint, "own_code_digest", lambda: "other")
    assert fingerprint.fingerprint(job()) not in (before, None)


def test_the_name_is_the_same_in_every_process() -> None:
    """The seed of hashes, which orders sets, is another one in each."""
    code = "from tests.tracers.test_cache import job, fingerprint; print(fingerprint.fingerprint(job()))"
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    begun = [
        subprocess.Popen([sys.executable, "-c", code], env={**paths, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE)
        for seed in ("1", "17")
    ]
    names = [process.communicate()[0].decode().strip() for process in begun]
    assert names[0] == names[1]
    assert len(names[0]) == 64


def untold() -> Iterator[tuple[str, nn.Module]]:
    yield "a class of these tests", Wrapper(model())
    yield "weights", nn.Sequential(nn.Linear(6, 20_000))
    pattern = model()
    pattern.pattern = re.compile("a")  # type: ignore[assignment]
    yield "an object that was not written in Python", pattern
    hooked = model()
    hooked.register_forward_hook(lambda module, args, output: output)
    yield "a function of these tests", hooked
    endless = model()
    endless.items = []  # type: ignore[assignment]
    endless.items.append(endless.items)  # type: ignore[operator, union-attr]
    yield "a list in itself", endless


@pytest.mark.parametrize("module", [pytest.param(m, id=name) for name, m in untold()])
def test_what_cannot_be_told_is_not_kept(module: nn.Module) -> None:
    assert fingerprint.fingerprint(job(module)) is None


def test_it_is_exported_all_the_same(folder: Path) -> None:
    module = model()
    module.pattern = re.compile("a")  # type: ignore[assignment]
    assert cached_export(job(module)).graph.ops
    assert kept(folder) == []


def damaged(whole: bytes) -> dict[str, bytes]:
    data = json.loads(gzip.decompress(whole))

    def packed(changed: Any) -> bytes:
        return gzip.compress(json.dumps(changed).encode())

    steep = {**data, "values": [[a, ["9" * 5000], *rest] for a, _, *rest in data["values"]]}
    return {
        "empty": b"",
        "cut": whole[:-20],
        "a byte": whole[:60] + bytes([whole[60] ^ 1]) + whole[61:],
        "not compressed": b"{}",
        "of another export": packed({**data, "name": "0" * 64}),
        "a list": packed([]),
        "nested too deep": gzip.compress(b"[" * 200_000 + b"]" * 200_000),
        "something behind it": packed(data)[:-1] + b"x",
        "a word for a list": packed({**data, "guards": "abc"}),
        "a list for a word": packed({**data, "values": [[["a"], *rest] for _, *rest in data["values"]]}),
        "a size that is yes": packed({**data, "values": [[a, [True], *rest] for a, _, *rest in data["values"]]}),
        "a long integer": gzip.compress(b'{"name":' + b"1" * 5000 + b"}"),
        "without a table": packed({k: v for k, v in data.items() if k != "values"}),
        "no tensors": packed({**data, "values": []}),
        "no expression": packed({**steep, "values": [[a, [{"expression": "__import__('os')"}], *rest] for a, _, *rest in data["values"]]}),  # noqa: E501
    }  # fmt: skip


def test_a_damaged_file_is_made_anew(folder: Path, made: list[str]) -> None:
    right = cached_export(job())
    (file,) = kept(folder)
    whole = file.read_bytes()
    for what, content in damaged(whole).items():
        file.write_bytes(content)
        made.clear()
        assert cached_export(job()).graph == right.graph, what
        assert made == ["toy"], what
        assert file.read_bytes() == whole, what


def test_what_is_no_file_is_made_anew(folder: Path, made: list[str], tmp_path: Path) -> None:
    """A FIFO and ``/dev/zero`` never end, so nothing of them may be read."""
    right = cached_export(job())
    (file,) = kept(folder)
    whole = file.read_bytes()

    for put in ("fifo", "/dev/zero", "x", str(tmp_path)):
        file.unlink()
        os.mkfifo(file) if put == "fifo" else file.symlink_to(put)
        made.clear()
        assert cached_export(job()).graph == right.graph
        assert made == ["toy"]
        assert not file.is_symlink()
        assert file.read_bytes() == whole
    file.unlink()
    file.mkdir()
    (file / "mine").write_text("mine")
    made.clear()
    assert [cached_export(job()).graph for _ in range(2)] == [right.graph] * 2
    assert made == ["toy"]
    assert file.read_bytes() == whole
    assert [p.read_text() for p in folder.rglob("mine")] == ["mine"]


def test_a_file_that_unpacks_to_more_than_the_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached_export(job())
    (file,) = kept(folder)
    size = len(gzip.decompress(file.read_bytes()))
    monkeypatch.setattr(cache, "MAX_BYTES", size)
    assert len(cache.load(file)) == size
    monkeypatch.setattr(cache, "MAX_BYTES", size - 1)
    with pytest.raises(ValueError, match="too large"):
        cache.load(file)


def test_a_file_where_the_folder_should_be(folder: Path) -> None:
    folder.write_text("mine")
    assert cached_export(job()).graph.ops
    assert folder.read_text() == "mine"


def test_writers_side_by_side(folder: Path) -> None:
    found = cached_export(job())
    (file,) = kept(folder)
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda _: cache._save_export(file, file.name.partition(".")[0], found), range(40)):
            assert cache._load_export(file, file.name.partition(".")[0], found.job) == found
    assert kept(folder) == [file]


@pytest.mark.parametrize("how", ["not wanted", "no folder"])
def test_nothing_is_kept(how: str, folder: Path, made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "no folder":
        monkeypatch.setenv(FOLDER, "")
    with cache_enabled(how != "not wanted"):
        cached_export(job())
        cached_export(job())
    assert made == ["toy", "toy"]
    assert kept(folder) == []


def test_the_folder_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert cache.folder() == Path("caches/costproof/exports")


def test_old_files_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_FILES", 2)
    for width in (8, 9, 10):
        cached_export(job(model(width=width)))
        for age, file in enumerate(kept(folder)):
            os.utime(file, (age, age))
    assert len(kept(folder)) == 2


def test_arguments_that_json_cannot_hold(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(one: ExportJob) -> Exported:
        found = export_graph(one)
        x = Value("x", (parse("floor(n/2)"), 3), "float32")
        op = OpCall("op", "aten.odd", "1", 1, (x,), (x,), {"how": object()})
        return Exported(one, type(found.graph)((op,), (x,)), {}, {}, (), ())

    monkeypatch.setattr(cache, "export_graph", odd)
    assert cached_export(job()).graph.ops[0].name == "aten.odd"
    assert kept(folder) == []


class Scaled(nn.Module):
    """Multiplies by a number that is worked out of a size: 13.0 more than it, or that times the size."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, rows, 6] -> the same."""
        return x * (x.shape[1] + 13.0 if self.whole else x.shape[0] + 13.0)


@pytest.mark.parametrize("whole", [True, False])
def test_numbers_that_are_not_whole(whole: bool) -> None:
    # In the first the number is 18.0; the other is an expression in n and 13.0, which our grammar has not.
    one = replace(job(Scaled(whole=whole)), args={"x": torch.empty(3, 5, 6, device="meta")})
    one = replace(one, module=Scaled(whole=whole), prefix={"": "toy"}, sizes=[SymbolicSize(("x",), 0, "n")])
    first, again = cached_export(one), cached_export(one)
    assert again.graph == first.graph


@pytest.mark.parametrize(("value", "stays"), [("13.0", True), ("13.0000000000000000000000001", False)])
def test_a_float_of_sympy_is_read_as_it_was_or_not_at_all(value: str, stays: bool) -> None:
    found = sympy.Float(value, 30 if not stays else 15)
    assert (from_plain(to_plain(found)) == found) is stays


def test_what_a_process_that_died_left_is_removed_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MOST_FILES", 1)
    folder.mkdir(exist_ok=True)
    mine = {"mine.json.gz", "tmpabc.part", "notes"}
    for name in (*mine, ".costproof-0123456789abcdef.part"):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (1, 1))
    for name in ("a" * 64, "b" * 64):
        cache.save(folder / f"{name}.json.gz", b"{}")
    assert {p.name for p in folder.iterdir()} == {*mine, f"{'b' * 64}.json.gz"}


def test_a_pipe_in_place_of_a_file_is_replaced(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / f"{'a' * 64}.json.gz"
    os.mkfifo(file)
    cache.save(file, b"{}")
    assert file.is_file()
    assert cache.load(file) == b"{}"
