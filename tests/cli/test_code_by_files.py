"""Code runs only where the command line or a call names it: not by a key of any file, not in a dry run, not on Tab.

Everything that could run here leaves a mark in the folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click import Context
from click.shell_completion import ShellComplete

import costproof
from costproof.cli.main import COMMANDS, cli
from costproof.ledger.errors import BadInput, Problems
from costproof.opgraph.rules.registry import unregister
from tests.support.running import costproof as command
from tests.support.running import inside

LEAVES = "from pathlib import Path\nPath({!r}).touch()\n"
FACTORY = "from torch import nn, zeros\ndef make():\n    return nn.Linear(2, 3), zeros(1, 2)\n"
RULE = "import costproof\n@costproof.operator_rule('mylib.op')\ndef rule(call):\n    return None\n"
SIZES = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 10}
ADDRESSES = ("mark.py:make", "./mark.py:make", "marked:make", "marked.inner:make")
CODE = {
    **{f"target {a}": (f"target: {a}\n", "$.target", a) for a in ADDRESSES},
    "rules": ("target: bert\nsources: [analytic]\nrules: [mark.py]\n", "$.rules", "--rules mark.py"),
    "a snapshot": ("target: hf:remote\ntrust_remote_code: true\n", "$.trust_remote_code", "--trust-remote-code"),
    "a name": ("target: bert\ntrust_remote_code: true\n", "$.trust_remote_code", "--trust-remote-code"),
}
"""What a request file says, the key that is refused, and what the command line has to say."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder full of code that leaves a mark, with the folder on the path as in a notebook."""
    mark = tmp_path / "MARK"
    (tmp_path / "mark.py").write_text(LEAVES.format(str(mark)) + FACTORY + RULE)
    (tmp_path / "marked").mkdir()
    for name in ("marked/__init__.py", "marked/inner.py", "conftest.py", "sitecustomize.py", "usercustomize.py"):
        (tmp_path / name).write_text(LEAVES.format(str(mark)) + FACTORY)
    (tmp_path / "remote").mkdir()
    automatic = {"AutoConfig": "configuration_mark.Config", "AutoModel": "configuration_mark.Model"}
    (tmp_path / "remote/config.json").write_text(json.dumps({"model_type": "marked", "auto_map": automatic}))
    (tmp_path / "remote/configuration_mark.py").write_text(LEAVES.format(str(mark)))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    left = mark.exists()
    unregister("mylib.op")
    for name in ("marked", "marked.inner"):
        sys.modules.pop(name, None)
    assert not left, "code ran"


def test_the_code_would_leave_its_mark(folder: Path) -> None:
    """The payloads work, so that their silence elsewhere says something."""
    for line in (
        ("capture", "mark.py:make", "--sources", "static", "-o", "x.json"),
        ("capture", "marked.inner:make", "--sources", "static", "-o", "x.json"),
        ("capture", "bert", "--sources", "analytic", "--rules", "mark.py", "-o", "x.json"),
        ("capture", "hf:remote", "--trust-remote-code", "-o", "x.json"),
    ):
        command(*line, cwd=folder)
        assert (folder / "MARK").exists(), line
        (folder / "MARK").unlink()


@pytest.mark.parametrize("verb", ["report", "capture", "counters", "measure", "derive", "peaks", "prove"])
def test_no_request_file_runs_code(verb: str, folder: Path) -> None:
    for text, key, spelled in CODE.values():
        (folder / "run.yaml").write_text(text)
        for more in ([], ["--dry-run"]):
            done = command(verb, "--request", "run.yaml", *more, cwd=folder)
            assert (done.code, done.stdout) == (2, ""), done
            assert f"{key} in run.yaml" in done.stderr
            assert f"add {spelled}" in done.stderr


def test_every_command_that_reads_requests_can_let_a_snapshot_run(folder: Path) -> None:
    """Nothing runs here: a dry run prints the request again."""
    (folder / "r.yaml").write_text("target: hf:remote\ntrust_remote_code: true\n")
    for verb in COMMANDS:
        command_ = cli.get_command(Context(cli), verb)
        if command_ is not None and any(p.name == "file" and "--request" in p.opts for p in command_.params):
            done = command(verb, "--request", "r.yaml", "--trust-remote-code", "--dry-run", cwd=folder)
            assert "no such option" not in done.stderr, verb
            assert "a request file cannot permit" not in done.stderr, verb


@pytest.mark.parametrize("kind", CODE)
def test_python_reads_no_request_that_runs_code(kind: str, folder: Path) -> None:
    text, key, _ = CODE[kind]
    (folder / "run.yaml").write_text(text)
    with inside(folder), pytest.raises(Problems) as error:
        costproof.read_request("run.yaml")
    assert [p.where for p in error.value.problems] == [f"{key} in run.yaml"]


@pytest.mark.parametrize(
    ("target", "choices", "line"),
    [
        ("mark.py:make", {}, ["mark.py:make"]),
        ("marked.inner:make", {}, ["marked.inner:make"]),
        ("bert", {"rules": ["mark.py"]}, ["--rules", "mark.py"]),
        ("hf:remote", {"trust_remote_code": True}, ["--trust-remote-code"]),
        ("mark.py:make", {"rules": "mark.py", "layers": 1}, ["mark.py:make", "--rules", "mark.py"]),
    ],
)
def test_a_dry_run_runs_nothing_and_prints_what_can_be_read_again(
    target: str, choices: dict[str, Any], line: list[str], folder: Path
) -> None:
    with inside(folder):
        asked = costproof.request(target, **choices)
        text = costproof.request_text(asked)
        (folder / "run.yaml").write_text(text)
        own = target if line[0] == target else None
        granted = {k: v for k, v in choices.items() if k in ("rules", "trust_remote_code")}
        assert costproof.read_request("run.yaml", own, **granted) == asked
    assert text.startswith(f"# This runs code, which the command line has to name too: {' '.join(line)}\n")
    for verb in ("report", "capture", "derive"):
        if verb == "derive" and target == "bert":
            continue  # which has two stages
        again = command(verb, *line, "--request", "run.yaml", "--dry-run", cwd=folder)
        assert (again.code, again.stderr) == (0, "")
    assert command("report", "--request", "run.yaml", "--dry-run", cwd=folder).code == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("report", "gone.py:make"), "there is no such file"),
        (("report", "mark.py:make", "--rules", "gone.py"), "no such Python file"),
        (("report", "mark.py:make", "--counters", "nobody"), "no such counter"),
        (("report", "mark.py:make", "--profile", "2", "--sources", "static"), "--profile needs the dynamic source"),
        (("report", "mark.py:make", "--run", "cpu", "--weights", "gone"), "there is no such folder"),
    ],
)
def test_a_dry_run_still_checks_what_needs_no_code(line: tuple[str, ...], said: str, folder: Path) -> None:
    done = command(*line, "--dry-run", cwd=folder)
    assert done.code == 2
    assert said in done.stderr


def test_a_claims_file_runs_no_code(folder: Path) -> None:
    for address in ADDRESSES:
        text = f"costproof_claims: 1\ntarget: {address}\nclaims: [{{stage: total, flops: 12}}]"
        (folder / "claims.yaml").write_text(text)
        done = command("check", "claims.yaml", cwd=folder)
        assert done.code == 2
        assert f"add {address}" in done.stderr
        with inside(folder), pytest.raises(BadInput, match="cannot permit code to run"):
            costproof.check("claims.yaml")
    (folder / "claims.yaml").write_text("costproof_claims: 1\ntarget: hf:remote\nclaims: [{stage: total, flops: 12}]")
    assert command("check", "claims.yaml", cwd=folder).code == 2


def _put(value: Any, payload: str) -> Iterator[Any]:
    """Copies of a document in which one text after the other is the payload; of a list only the first element."""
    below = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for key, part in below:
        named = isinstance(part, str) and not part[:1].isdigit()
        for changed in [payload] if named else _put(part, payload):
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[key] = changed
            yield copy


PAYLOAD = "the payload"
HEADER = ("schema", "target", "workload", "conventions", "environment", "run", "name")
"""What says what a file is about; the rest of files that have it is numbers."""
READERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "capture.json": (
        ("compare", "FILE"), ("render", "FILE", "-f", "static-md"), ("diff", "FILE", "bert"),
        ("fits", "FILE", "--on", "l4"),
        ("gate", "FILE", "bert", "--policy", "policy.yaml"), ("ops", "--capture", "FILE"), ("graph", "FILE"),
        ("explain", "bert", "forward", "--capture", "FILE"), ("check", "claims.yaml", "--capture", "FILE"),
        ("roofline", "FILE", "--on", "l4"), ("plot", "FILE"),
    ),
    "baseline.json": (
        ("diff", "FILE", "bert"), ("gate", "FILE", "bert", "--policy", "policy.yaml"), ("fits", "FILE", "--on", "l4"),
    ),
    "static_compute.json": (("diff", "FILE", "bert"),),
    "roofline.json": (("plot", "FILE"),),
    "sweep.json": (("plot", "FILE"),),
    "device.json": (("machine", "FILE"), ("fits", "bert", "--on", "FILE")),
    "config.json": (("report", "hf:FILE", "--dry-run", "--sources", "analytic"), ("diff", "bert", "hf:FILE")),
    "request.json": (("report", "--request", "FILE", "--dry-run"),),
    "policy.json": (("gate", "baseline.json", "bert", "--policy", "FILE"),),
    "claims.json": (("check", "FILE"),),
    "weights/model.safetensors.index.json": (("report", "bert", "--run", "cpu", "--weights", "weights", "--dry-run"),),
}  # fmt: skip
"""File -> the commands that read it."""


def _made(folder: Path) -> None:
    """One good file of each kind."""
    for line in (
        ("capture", "bert", "--sources", "analytic", "-o", "capture.json"),
        ("render", "capture.json", "-f", "baseline", "-o", "baseline.json"),
        ("render", "capture.json", "-f", "static-json", "-o", "static_compute.json"),
        ("roofline", "bert", "--on", "l4", "-o", "roofline.json"),
        ("sweep", "bert", "--over", "batch=1,2", "-o", "sweep.json", "--no-plot"),
    ):
        done = command(*line, cwd=folder)
        assert done.code in (0, 3), done
    device = json.dumps(json.loads((folder / "roofline.json").read_text())["device"])
    (folder / "device.json").write_text(device)
    limits = {"costproof_policy": "1", "inputs": "any", "limits": [{"metric": "flops", "increase": "0", "stage": "*"}]}
    claims = {"costproof_claims": "1", "target": "bert", "title": "t", "source": "s", "workload": {"batch": "1"},
              "claims": [{"id": "a", "stage": "total", "flops": "12"}]}  # fmt: skip
    request = {"target": "bert", "config": "config.json", "sources": ["analytic"], "counters": ["all"],
               "rules": ["x"], "workload": {"batch": "1"}, "run": {"weights": "random", "device": "meta"}}  # fmt: skip
    config = {"model_type": "bert", "architectures": ["BertModel"], "_name_or_path": "x", "tokenizer_class": "x",
              "quantization_config": {"quant_method": "x"}, **SIZES}  # fmt: skip
    (folder / "weights").mkdir()
    for name, data in (
        ("policy.json", limits), ("claims.json", claims), ("request.json", request), ("config.json", config),
        ("weights/model.safetensors.index.json", {"weight_map": {"a": "model.safetensors"}}),
    ):  # fmt: skip
        (folder / name).write_text(json.dumps(data))
    (folder / "policy.yaml").write_text(json.dumps(limits))
    (folder / "claims.yaml").write_text(json.dumps(claims))


@pytest.mark.slow
def test_no_text_in_any_file_runs_code(folder: Path) -> None:
    _made(folder)
    seen = 0
    for name, lines in READERS.items():
        file = folder / name
        good = json.loads(file.read_text())
        head = {key: part for key, part in good.items() if key in HEADER} if "schema" in good else good
        for i, changed in enumerate(_put(head, PAYLOAD)):
            text = json.dumps({**good, **changed}).replace(
                PAYLOAD, ("mark.py:make", "hf:remote", "marked.inner:make")[i % 3]
            )
            file.write_text(text)
            line = tuple(word.replace("FILE", name) for word in lines[i % len(lines)])  # every command gets some
            done = command(*line, cwd=folder)
            assert done.code in (0, 1, 2, 3), (line, done)
            assert not (folder / "MARK").exists(), (line, done)
            seen += 1
        file.write_text(json.dumps(good))
    assert seen > 100


def test_nothing_runs_on_tab_nor_for_help(folder: Path) -> None:
    shell: Any = ShellComplete(cli, {}, "costproof", "_COSTPROOF_COMPLETE")
    (folder / "run.yaml").write_text("target: mark.py:make\n")
    with inside(folder):
        for address in ADDRESSES:
            for words in (["explain", address], ["derive", address], ["report", address, "--preset"],
                          ["counters", address, "--stage"], ["report", address]):  # fmt: skip
                shell.get_completions(words, "")
                shell.get_completions(words, "--")
        shell.get_completions(["report", "--request", "run.yaml"], "--")
    assert command("report", "mark.py:make", "--help", cwd=folder).code == 0


@pytest.mark.parametrize(
    ("side", "says"),
    [
        ("mark:make", "mark~0:make reads the file, mark.py:make runs"),
        ("marked.inner:make", "./marked.inner:make reads the file, marked/inner.py:make runs"),
        ("mark.py:make", "./mark.py:make reads the file"),
    ],
)
def test_a_side_that_is_a_file_and_a_function_is_not_run(side: str, says: str, folder: Path) -> None:
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", "init", "-q", "-b", "mark", str(folder)], check=True)
    (folder / "make").write_text("{}")
    (folder / "marked.inner:make").write_text("{}")
    (folder / "mark.py:make").write_text("{}")
    for words in (["add", "make"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    (folder / "p.yaml").write_text("costproof_policy: 1\nlimits: [{metric: flops, increase: 0}]\n")
    for words in (["diff", side, "bert"], ["gate", "bert", side, "--policy", "p.yaml"],
                  ["roofline", side, "--on", "l4"],
                 ["fits", side, "--on", "l4"], ["diff", f"{side},batch=2", "bert"]):  # fmt: skip
        if not (",batch" in words[1] and side != "mark:make"):  # no file has that name
            done = command(*words, cwd=folder)
            assert (done.code, says in " ".join(done.stderr.split())) == (2, True), done.stderr
    # The forms that it advises: git's file is read, and is no file of ours.
    done = command("diff", "mark~0:make", "bert", cwd=folder)
    assert (done.code, "schema" in done.stderr) == (2, True)


def test_a_branch_in_a_repository_that_git_does_not_trust_is_not_run_as_a_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", "-b", "mark", str(folder)], check=True)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    done = command("diff", "mark:make", "bert", cwd=folder)
    assert (done.code, "a file to read or a function to run" in done.stderr) == (2, True)


def test_git_runs_no_program_that_the_folder_names(folder: Path) -> None:
    """A clone without its objects fetches them, by a command of its own configuration."""
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "base.json").write_text("{}")
    for line in (("add", "base.json"), ("commit", "-qm", "x")):
        subprocess.run([*git, *line], cwd=folder, check=True)
    blob = subprocess.run(
        ["git", "rev-parse", "HEAD:base.json"], cwd=folder, check=True, capture_output=True, text=True
    )
    Path(folder, ".git/objects", blob.stdout[:2], blob.stdout[2:].strip()).unlink()
    for name, value in (
        ("core.repositoryformatversion", "1"), ("extensions.partialclone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", f"ext::touch {folder}/MARK"), ("protocol.ext.allow", "always"),
    ):  # fmt: skip
        subprocess.run(["git", "config", name, value], cwd=folder, check=True)
    done = command("diff", "HEAD:base.json", "bert", cwd=folder)
    assert done.code == 2
    assert "git does not have this file" in done.stderr


def test_a_matplotlibrc_in_the_current_folder_changes_no_picture(tmp_path: Path) -> None:
    """What is read from one when matplotlib is imported is in its ``rcParams``."""
    import matplotlib

    assert command("sweep", "bert", "--over", "batch=1,2", "-o", "s.json", "--no-plot", cwd=tmp_path).code == 0
    plain = costproof.plot(tmp_path / "s.json")
    with matplotlib.rc_context(
        {"lines.linewidth": 9, "axes.facecolor": "red", "axes.prop_cycle": "cycler('color', 'r')"}
    ):
        assert costproof.plot(tmp_path / "s.json") == plain
        assert matplotlib.rcParams["lines.linewidth"] == 9
