"""Small files that would take long, fill the memory or show what they should not: bounds of docs/limits.md."""

from __future__ import annotations

import itertools
import json
import os
import struct
import subprocess
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costproof import api
from costproof.algebra.symbols import parse, term_count
from costproof.claims import read_claims
from costproof.compare.proof.certificate import Settings
from costproof.compare.proof.judge import Answer
from costproof.configs.reader import Section
from costproof.ledger import files
from costproof.ledger.callgraph import MOST_LEVELS, CallGraph, check_levels
from costproof.ledger.capture import Capture, SymbolDoc, read_capture
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.files import MAX_PARTS, json_text, read_json
from costproof.ledger.schema import to_data
from costproof.models.families.deepseek_ocr.vendor_code import CODE, imported
from costproof.models.pages.page import image_sides
from costproof.run import operand_files
from costproof.run import proof as kept_answers
from costproof.views import manifest as manifests
from costproof.views.manifest import MANIFEST, NAME, check_manifest, manifest
from costproof.weights.loading import shards
from tests.support.running import costproof
from tests.support.toy import toy
from tests.support.written import write_capture


@pytest.fixture(autouse=True)
def quick() -> Any:
    """No bound is worth more than two seconds of the processor."""
    began = time.process_time()
    yield
    assert time.process_time() - began < 2


def test_a_file_without_an_end(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="too large"):
        read_json(Path("/dev/zero"), what="configuration")


def test_parts_without_end(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[" + "1," * MAX_PARTS + "1]")
    with pytest.raises(BadInput, match="too many parts"):
        read_json(tmp_path / "x.json", what="configuration")


def test_a_pipe_without_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening one, and reading from it, wait for somebody who writes: in a folder of a stranger nobody comes."""
    monkeypatch.setattr(files, "WAIT", 0.05)
    os.mkfifo(tmp_path / "c.json")
    os.mkfifo(tmp_path / "t.csv")
    (tmp_path / "c.yaml").write_text(CLAIMS % "t.csv")
    for read in (
        lambda: read_json(tmp_path / "c.json", what="configuration"),
        lambda: read_claims(tmp_path / "c.yaml"),
    ):
        with pytest.raises(BadInput) as caught:
            read()
        assert "a pipe that has not ended after 0 s" in str(caught.value)
    with pytest.raises(BadInput, match="not a file"):
        image_sides(tmp_path / "c.json")
    (tmp_path / NAME).write_text(json_text(to_data(MANIFEST, manifest({tmp_path / "c.json": "x"}))))
    with pytest.raises(BadInput, match="files of two runs"):
        check_manifest(tmp_path)


def test_a_file_of_a_report_that_is_too_large(tmp_path: Path) -> None:
    """A sparse file takes no room, and its hash takes hours."""
    (tmp_path / NAME).write_text(json_text(to_data(MANIFEST, manifest({tmp_path / "c.json": "x"}))))
    (tmp_path / "c.json").touch()
    os.truncate(tmp_path / "c.json", 2**40)
    with pytest.raises(BadInput, match="files of two runs"):
        check_manifest(tmp_path)


def test_files_of_a_report_are_hashed_once_and_no_more_than_one_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "_MOST_BYTES", 3)
    made = manifest({tmp_path / "a": "12", tmp_path / "b": "34"})
    for name, text in (("a", "12"), ("b", "34")):
        (tmp_path / name).write_text(text)
    (tmp_path / NAME).write_text(json_text(to_data(MANIFEST, made)))
    with pytest.raises(BadInput, match="files of two runs") as caught:  # four bytes together
        check_manifest(tmp_path)
    assert str(caught.value.where).endswith("b")
    monkeypatch.setattr(manifests, "_MOST_BYTES", 4)
    check_manifest(tmp_path)
    # Other spellings of one name would have it hashed again and again.
    twice = replace(made, files={**made.files, "./a": made.files["a"]})
    (tmp_path / NAME).write_text(json_text(to_data(MANIFEST, twice)))
    with pytest.raises(BadInput, match="not the name of a file in the folder"):
        check_manifest(tmp_path)


def test_a_pipe_that_was_read_before() -> None:
    """Commands that look at a configuration first read it twice, which a pipe such as /dev/stdin cannot give."""
    reader, writer = os.pipe()
    os.close(writer)
    with pytest.raises(BadInput, match="an empty pipe") as caught:
        read_json(Path(f"/dev/fd/{reader}"), what="configuration")
    os.close(reader)
    assert "write it to a file" in str(caught.value)


def test_a_pipe_with_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.json")

    def write() -> None:
        with (tmp_path / "c.json").open("w") as out:
            for piece in ("[1", ", 2", "]"):
                out.write(piece)
                out.flush()
                time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_json(tmp_path / "c.json", what="configuration") == [1, 2]
    writer.join()


def test_code_without_end(tmp_path: Path) -> None:
    (tmp_path / CODE[0]).write_text("-" * 200_000 + "1")
    (tmp_path / CODE[1]).write_text("from .beside import x\n")
    assert imported(tmp_path) == ("beside.py",)


def test_a_number_of_5000_digits(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"n": %s}' % ("9" * 5_000))
    with pytest.raises(BadInput, match="a number with too many digits"):
        read_json(tmp_path / "x.json", what="configuration")
    (tmp_path / "x.json").write_text('{"n": %s}' % ("9" * 300))
    assert read_json(tmp_path / "x.json", what="configuration") == {"n": int("9" * 300)}


@pytest.mark.parametrize(
    "source",
    [
        "+".join(f"ceiling((S+{i})/{i + 2})" for i in range(149)),
        "+".join(f"Max(S+{i},B*{i + 1})" for i in range(149)),
    ],
    ids=["149 ceilings", "149 maxima"],
)
def test_functions_without_end(source: str) -> None:
    with pytest.raises(BadInput, match="too many functions"):
        parse(source)


def test_terms_are_counted_without_multiplying_out() -> None:
    assert term_count(parse("(a + b)*(c + d) + e")) == 5
    assert term_count(parse("(a + b + c)**3")) == 27
    assert term_count(parse("(a+b+c+d+e+f+g+h)**64")) == 2_001


def all_flops(made: Capture, expr: str) -> Capture:
    nodes = [
        tuple(replace(n, exprs={"flops": expr}) if "flops" in n.exprs else n for n in x.nodes) for x in made.ledgers
    ]
    return replace(made, ledgers=tuple(replace(x, nodes=n) for x, n in zip(made.ledgers, nodes, strict=True)))


def documented(latex: str) -> Callable[[Capture], Capture]:
    return lambda made: replace(made, symbols={**made.symbols, "n": SymbolDoc(latex, "views")})


def symbol(value: int) -> Callable[[Capture], Capture]:
    return lambda made: replace(made, target=replace(made.target, symbols={**made.target.symbols, "clip_width": value}))


def chain(count: int, name: Callable[[int], str]) -> CallGraph:
    names = ["(root)", *map(name, range(1, count))]
    edges = {f"{a}->{b}": 1 for a, b in itertools.pairwise(names)}
    return CallGraph(dict.fromkeys(names, 1), edges, {}, {}, dict.fromkeys(names, "T"))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda made: all_flops(made, "(n+H+b+sam_hidden)**64"), "too large, multiplied out"),
        (documented("<script>alert(1)</script>"), "not a valid typesetting of a symbol"),
        (documented("n$ [x](http://e.vil) $"), "not a valid typesetting of a symbol"),
        (documented("x" * 201), "not a valid typesetting of a symbol"),
        (symbol(10**18), "too large"),
        (lambda made: replace(made, callgraph=chain(3_000, lambda i: f"m{i}")), "nested too deep"),
        (lambda made: replace(made, callgraph=chain(500, lambda i: ".".join("a" * i))), "nested too deep"),
    ],
    ids=["a power of a sum", "a script", "a link", "a long name", "a large width", "calls", "paths"],
)
def test_a_capture_without_measure(tmp_path: Path, edit: Callable[[Capture], Capture], said: str) -> None:
    write_capture(tmp_path / "c.json", edit(toy()))
    with pytest.raises(Problems) as caught:
        read_capture(tmp_path / "c.json")
    assert any(said in p.what for p in caught.value.problems), str(caught.value)


def test_the_deepest_callgraph_is_drawn() -> None:
    for name in (lambda i: f"m{i}", lambda i: ".".join("a" * i)):
        deepest = chain(MOST_LEVELS, name)
        check_levels(deepest, "x")
        assert api.graph(deepest, "dot")


def test_layers_without_end() -> None:
    problems: list[Any] = []
    Section({"n": 10_000}, "$", problems).sizes({"layers": "n"})
    assert [p.expected for p in problems] == ["an integer from 1 to 1000"]


def test_a_pipe_is_not_a_shard(tmp_path: Path) -> None:
    """Opening one waits for somebody who writes."""
    os.mkfifo(tmp_path / "model.safetensors")
    problems: list[Any] = []
    assert shards(tmp_path, problems) == {}
    assert [p.what for p in problems] == ["a shard is not a file"]


def png(sides: tuple[int, int], orientation: int | None = None) -> bytes:
    """The chunks of a picture whose pixels are no pixels; EXIF stands behind them."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *sides, 8, 6, 0, 0, 0))
    tag = b"" if orientation is None else struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    exif = b"" if orientation is None else chunk(b"eXIf", b"MM\0*\0\0\0\x08" + struct.pack(">H", 1) + tag + bytes(4))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"no pixels") + exif + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("orientation", "sides"), [(None, (13_300, 12_000)), (6, (12_000, 13_300)), (3, (13_300, 12_000))]
)
def test_no_pixel_of_a_png_is_decoded(
    tmp_path: Path, orientation: int | None, sides: tuple[int, int], recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "x.png").write_bytes(png((13_300, 12_000), orientation))
    assert image_sides(tmp_path / "x.png") == sides
    assert not recwarn


SECRET = "root:*:20228:0:99999:7:::\nhidden"
CLAIMS = "costproof_claims: 1\ntarget: gpt2\ntables:\n  - {file: %s, columns: {stage: a, flops: b}}\n"


@pytest.mark.parametrize("name", ["../secret", "{outside}", "link", '"a\\0b"', "beside"])
def test_a_claims_file_of_somebody_else_shows_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text(SECRET)
    folder = tmp_path / "claims"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "beside").write_text(SECRET)
    (folder / "c.yaml").write_text(CLAIMS % name.format(outside=tmp_path / "secret"))
    result = costproof("check", "c.yaml", cwd=folder)
    assert result.code == 2
    assert "root:" not in result.stderr + result.stdout
    assert "20228" not in result.stderr
    if name != '"a\\0b"':
        assert ("outside the folder" in result.stderr) == (name != "beside")


def test_a_table_below_the_claims_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "x.json").write_text(json.dumps([{"a": "prefill", "b": 3}]))
    (tmp_path / "c.yaml").write_text(CLAIMS % "t/x.json")
    assert [c.stage for c in read_claims(tmp_path / "c.yaml").claims] == ["prefill"]


def test_a_table_of_points_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As rows of a sweep, and as a sweep to draw."""
    for head, read in (("batch", lambda file: api.sweep("llama", table=file)), ("batch,flops", api.plot)):
        (endless := tmp_path / "zero.csv").unlink(missing_ok=True)
        endless.symlink_to("/dev/zero")
        with pytest.raises(BadInput, match="too large"):
            read(endless)
        wide = tmp_path / "wide.csv"
        wide.write_bytes(b"," * (MAX_PARTS + 1))
        with pytest.raises(BadInput, match="too many parts"):
            read(wide)
        wide.write_text(f"{head}\n" + "1" * 200_000)
        with pytest.raises(BadInput, match="is not CSV"):
            read(wide)
        wide.write_text(f"{head}\n" + head.replace("batch", "1").replace("flops", "1" * 5_000))
        if read is api.plot:
            with pytest.raises(BadInput, match="not a row of a sweep"):
                read(wide)
        with monkeypatch.context() as patch:
            patch.setattr(files, "WAIT", 0.05)
            (pipe := tmp_path / "pipe.csv").unlink(missing_ok=True)
            os.mkfifo(pipe)
            with pytest.raises(BadInput, match="cannot read"):
                read(pipe)


def test_a_table_at_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text("batch\n1\n2\n")  # three ends of lines, 10 bytes
    for bound, value in (("MAX_PARTS", 3), ("MAX_BYTES", 10)):
        with monkeypatch.context() as patch:
            patch.setattr(files, bound, value)
            assert len(api.sweep("llama", table=tmp_path / "t.csv")) == 2
            patch.setattr(files, bound, value - 1)
            with pytest.raises(BadInput, match="too"):
                api.sweep("llama", table=tmp_path / "t.csv")


def test_points_are_counted_before_they_are_made() -> None:
    assert len(api.sweep("llama", {"batch": "1:1000000000"})) == 10**9
    assert len(api.sweep("llama", {"batch": "1:100000", "text_tokens": "1:10000"})) == 10**9
    assert len(api.sweep("llama", {"batch/text_tokens": "1:999999999/1:999999999"})) == 999_999_999
    for over in (
        {"batch": "1:1000000001"},
        {"batch": "1:100000", "text_tokens": "1:10001"},
        {"batch": "1:999999999999:1"},
    ):
        with pytest.raises(BadInput, match="too many points"):
            api.sweep("llama", over)
    assert len(api.sweep("llama", {"batch": "1:19,20"})) == 20
    for over in ({"batch": "1:2000000,5"}, {"batch/text_tokens": "1:2000001/7"}):
        with pytest.raises(BadInput, match="too many values"):
            api.sweep("llama", over)


def test_a_file_in_git_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.json").write_text("[1]")
    for command in ("init -q .", "add b.json", "-c user.name=a -c user.email=a@b commit -q -m a"):
        subprocess.run(["git", *command.split()], check=True)
    monkeypatch.setattr(operand_files, "MAX_BYTES", 3)
    assert operand_files._in_git("HEAD:b.json") == b"[1]"
    monkeypatch.setattr(operand_files, "MAX_BYTES", 2)
    with pytest.raises(BadInput, match="too large"):
        operand_files._in_git("HEAD:b.json")


def test_answers_of_a_proof_that_are_no_file_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, file = Settings(3, 1, "{}"), tmp_path / kept_answers.NAME
    for put in (os.mkfifo, lambda path: os.symlink("/dev/zero", path), os.mkdir):
        put(file)
        with (
            pytest.raises(BadInput, match="a file of this name exists, and costproof did not write it"),
            kept_answers.ProofCheckpoint(tmp_path, "llama", settings),
        ):
            pass
        file.rmdir() if file.is_dir() else file.unlink()
    answer = Answer({"prefill": 1}, (), ())
    with kept_answers.ProofCheckpoint(tmp_path, "llama", settings) as kept:
        assert kept.read() == []
        kept.add("a", answer)
    monkeypatch.setattr(kept_answers, "MAX_BYTES", file.stat().st_size)
    with kept_answers.ProofCheckpoint(tmp_path, "llama", settings) as kept:
        assert kept.read() == [("a", answer)]
    monkeypatch.setattr(kept_answers, "MAX_BYTES", file.stat().st_size - 1)
    with kept_answers.ProofCheckpoint(tmp_path, "llama", settings) as kept:
        assert kept.read() == []
