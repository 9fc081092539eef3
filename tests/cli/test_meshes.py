"""Every command with a mesh, as a new user types it: numbers by hand, and errors that say what to do."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.support.running import costproof

LLAMA = "llama-3.1-70b"


def test_a_sweep_over_tp(tmp_path: Path) -> None:
    """A step of a token sends 2 (n - 1) / n of 161 x 16,384 bytes and (n - 1) / n of 256,512; one device nothing."""
    found = costproof("sweep", LLAMA, "--text-tokens", "1", "--new-tokens", "0", "--over", "tp=1,2,3,4,8",
                      "--metric", "comm_bytes", "--metric", "messages", cwd=tmp_path)  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(found.stdout[found.stdout.index("tp,") :])))
    sent = {int(r["tp"]): (int(r["comm_bytes"]), int(r["messages"])) for r in rows}
    assert sent == {n: ((n - 1) * (2 * 161 * 16_384 + 256_512) // n, 162 if n > 1 else 0) for n in (1, 2, 4, 8)}
    assert "one rank of the devices of each point" in rows[0]["counted"]
    assert "tensor parallelism must divide the attention heads" in found.stderr + found.stdout


def test_a_sweep_of_one_device_sends_nothing(tmp_path: Path) -> None:
    found = costproof("-q", "sweep", "bert", "--over", "batch=1,2", "--metric", "comm_bytes", cwd=tmp_path)
    assert [line.split(",")[:2] for line in found.stdout.splitlines() if line[:1] in "12"] == [["1", "0"], ["2", "0"]]


def test_explain_has_the_formula_of_each_collective(tmp_path: Path) -> None:
    line = ("-q", "explain", LLAMA, "decode", "--metric", "comm_bytes")
    text = costproof(*line, "--tp", "8", cwd=tmp_path).stdout
    assert "formula  N*b*(2*tp - 2)*ceiling(B*text_hidden/tp)" in text
    assert "result   28,672 x 80 modules = 2,293,760 bytes" in text
    refused = costproof(*line, cwd=tmp_path)
    assert (refused.code, "one device has no collectives" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("llama --tp 5", "tensor parallelism must divide the attention heads"),
        ("llama --tp 0", "at least 1"),
        ("llama --tp 4 --ep 4", "1, since no layer has experts"),
        ("llama --ep 2", "a multiple of tp 1 that divides tp x cp x dp = 1"),
        ("llama --tp 4 --rank 4", "0 to 3"),
        ("llama --rank 1", "0, since there is one device"),
        ("llama --tp 2 --rows 3,4", "one device, or equal sequences"),
        ("llama --pp 2", "this axis is not counted yet"),
        ("llama --dp 4", "fewer sequences than data-parallel ranks"),
        ("gpt2 --tp 2", "of gpt2: --text-tokens"),
        ("bert --tp 2", "of bert: --seq-len"),
    ],
)
def test_meshes_that_cannot_be(line: str, said: str, tmp_path: Path) -> None:
    found = costproof("-q", "capture", *line.split(), "--sources", "analytic", "-o", "x.json", cwd=tmp_path)
    assert (found.code, said in found.stderr, list(tmp_path.iterdir())) == (2, True, []), found.stderr
