"""A signal while weights are drawn, or the machine is measured, ends the command and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from costproof.ledger.errors import EXIT_INCOMPLETE
from tests.oracles.faults import GRACE, Place, marked

pytestmark = pytest.mark.slow

MANY = 2**18
"""Words of a vocabulary whose weights take some seconds to be drawn."""
MODEL = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 1, "vocab_size": MANY,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
RUN = ("llama", "--config", "m.json", "--run", "cpu", "--dtype", "bfloat16", "--text-tokens", "4", "--new-tokens", "1")


@pytest.mark.parametrize(
    ("line", "said", "number"),
    [
        (("report", *RUN, "-o", "out"), "dynamic: 1048576 of 270008320", signal.SIGTERM),
        pytest.param(  # weights are drawn as by a report; test_processes.py has this signal
            ("measure", *RUN, "--on", "h100-sxm", "-o", "measured.json"),
            "random weights: 1048576 of 270008320",
            signal.SIGINT,
            marks=pytest.mark.thorough,
        ),
        (("machine", "--measure", "-o", "here.json"), "machine: 0 of ", signal.SIGTERM),
    ],
    ids=["report", "measure", "machine"],
)
def test_it_ends_and_leaves_nothing(line: tuple[str, ...], said: str, number: signal.Signals, tmp_path: Path) -> None:
    where, mark = Place(tmp_path), uuid.uuid4().hex
    (tmp_path / "tmp").mkdir()
    (tmp_path / "m.json").write_text(json.dumps(MODEL))
    before, errors = where.names(), tmp_path / "said"
    with errors.open("wb") as into:
        process = subprocess.Popen(
            [sys.executable, "-m", "costproof", "-v", *line], cwd=tmp_path, env=where.environment(mark),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=into, start_new_session=True,
        )  # fmt: skip
    try:
        until = time.monotonic() + 120
        while said not in errors.read_text() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        assert said in errors.read_text(), errors.read_text()
        process.send_signal(number)
        assert process.wait(GRACE) == EXIT_INCOMPLETE
        assert "error: interrupted" in errors.read_text()
        until = time.monotonic() + GRACE
        while marked(mark) and time.monotonic() < until:
            time.sleep(0.05)
        assert marked(mark) == []
        # Torch makes an empty folder for its compiler when it is imported.
        assert {name for name in where.names() if not name.startswith("tmp/torchinductor")} == before
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        process.wait()
