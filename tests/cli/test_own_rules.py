"""Every command that counts a graph or a run takes the user's own operator rules, in the processes that it starts too.

``tests/data/mylib`` has the operator, and ``my_rules.py`` its rule: 2 x rows x 8 x 12 FLOPs for a call. By hand:
``mylib_ops:Model`` at its 3 sequences of 4 is a linear layer 6 -> 8 over 12 rows, 2 * 12 * 6 * 8 = 1,152 FLOPs, and two
calls with 6 rows each, 2 * 2 * 6 * 8 * 12 = 2,304: together 3,456. ``described`` is one call with 5 rows, 960 FLOPs.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import joblib
import pytest

import costproof as api
from costproof.cli.main import cli
from costproof.ledger.errors import BadInput
from costproof.opgraph.rules.files import in_force
from tests.support.running import Result, costproof

MYLIB = Path(__file__).parents[1] / "data" / "mylib"
RULES = str(MYLIB / "my_rules.py")
OWN = "mylib_ops:Model"
CLAIMS = "costproof_claims: 1\nclaims:\n  - {stage: total, flops: 3456}\n"
POLICY = "costproof_policy: 1\nlimits:\n  - {metric: flops, increase: 0}\n"

LINES = {
    "capture": (f"capture {OWN} --sources static -o c.json", 3, 0, ""),
    "report": (f"report {OWN} --sources static,dynamic -o r", 3, 0, "3.46 kFLOP"),
    "counters": ("counters described --only FlopCounterMode", 3, 0, "960 FLOP"),
    "measure": (f"measure {OWN} --predict --on l4", 3, 0, "3.46 kFLOP"),
    "derive": (f"derive {OWN} --points 1", 3, 0, "total = 1152*B"),
    "peaks": (f"peaks {OWN}", 0, 0, ""),
    "explain": (f"explain {OWN} forward --graph", 0, 0, "6 operators, 3,456 FLOP"),
    "diff": (f"diff {OWN} described -f text", 3, 0, "960 FLOP"),
    "gate": (f"gate {OWN} {OWN} --policy policy.yaml", 3, 0, ""),
    "fits": (f"fits {OWN} --memory 1GB", 3, 0, "weights, buffers and live peak          1,760"),
    "roofline": (f"roofline {OWN} --on l4", 3, 0, "3.46 kFLOP"),
    "graph": (f"graph {OWN} -f mmd", 0, 0, "2.30 kFLOP (66.7"),
    "check": (f"check claims.yaml {OWN}", 1, 0, "1 right"),
    "prove": ("prove described --samples 0 --jobs 1 -o p", 3, 0, "proved: "),
    "sweep": ("sweep described --over rows=5 --validate 1 --jobs 1", 3, 0, "exact: rows 5"),
}
"""Command -> its line, its exit code without and with the rule, and a number that only the rule gives.

Fits by hand: (6 x 8 + 8 + 8 x 12) x 4 = 608 B of weights; two halves of 3 x 2 x 12 numbers and both joined, 1,152 B.
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with claims and a policy; the distribution is installed."""
    monkeypatch.syspath_prepend(MYLIB)
    (tmp_path / "claims.yaml").write_text(CLAIMS)
    (tmp_path / "policy.yaml").write_text(POLICY)
    yield tmp_path
    assert in_force() == ()


def run(line: str, folder: Path, *more: str) -> Result:
    return costproof(*line.split(), *more, cwd=folder)


QUICK = ("capture", "diff", "gate", "check", "roofline", "graph", "sweep")
"""Commands that run in `make test`; the others take the same options the same way, and as long."""


# In processes of their own: a certificate, below.
@pytest.mark.usefixtures("one_process", "proof_in_this_process")
@pytest.mark.parametrize("verb", [v if v in QUICK else pytest.param(v, marks=pytest.mark.thorough) for v in LINES])
def test_a_command_that_counts_takes_rules(verb: str, folder: Path) -> None:
    line, without, with_rules, said = LINES[verb]
    before = run(line, folder)
    after = run(line, folder, "--rules", RULES)
    assert before.code == without, before
    assert after.code == with_rules, after
    if said:
        assert said in after.stdout
        assert said not in before.stdout


@pytest.mark.thorough
def test_processes_of_a_sweep_have_its_rules(folder: Path) -> None:
    assert run("sweep described --over rows=5 --validate 1 --jobs 2", folder, "--rules", RULES).code == 0


@pytest.mark.usefixtures("one_process")
def test_what_a_sweep_sends_to_processes_names_its_rules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    delayed = joblib.delayed

    def sending(work: Any) -> Any:
        sent.append(pickle.loads(pickle.dumps(work)))
        return delayed(work)

    monkeypatch.setattr(joblib, "delayed", sending)
    assert run("sweep described --over rows=5 --validate 1 --jobs 1", folder, "--rules", RULES).code == 0
    (work,) = sent
    assert in_force() == ()
    assert [str(file) for file in work.func(work.args[0], in_force)] == [RULES]


def test_no_command_that_loads_a_target_lacks_rules_or_trust() -> None:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    options = {name: {o for p in (c.params if c else ()) for o in p.opts} for name, c in commands.items()}
    both = {name for name, found in options.items() if {"--rules", "--trust-remote-code"} <= found}
    assert both == LINES.keys()
    one = {name for name, found in options.items() if {"--rules", "--trust-remote-code"} & found} - both
    assert one == {"stored"}  # it builds a model and counts no operator
    assert "--rules" not in options["stored"]


def test_a_certificate_names_its_rules_and_is_verified_with_them(folder: Path) -> None:
    """In processes of their own, which are sent the rules."""
    made = api.prove("described", out=folder / "p", samples=0, jobs=2, rules=RULES)
    assert made.verdict == "proved"
    assert made.environment["rules"].startswith("my_rules.py ")
    file = folder / "p/certificate.json"
    assert api.verify(file, jobs=1, rules=[RULES]).exit_code == 0
    again = api.verify(file, jobs=1)
    assert again.certificate.verdict == "incomplete"
    assert f"rules: {made.environment['rules']} in the certificate, None now" in again.versions


def test_answers_of_a_proof_with_other_rules_are_not_taken(folder: Path) -> None:
    from costproof.compare.proof.certificate import Settings
    from costproof.opgraph.rules.files import rules_from
    from costproof.run.proof import ProofCheckpoint

    settings = Settings(0, 1, "{}")
    with rules_from(RULES):
        ruled = ProofCheckpoint(folder, "described", settings).head
    assert ruled != ProofCheckpoint(folder, "described", settings).head


def test_other_rules_stop_a_gate(folder: Path) -> None:
    """Its baseline was counted with the rule; a head with another file of rules is another version of a library."""
    other = folder / "other.py"
    other.write_text(Path(RULES).read_text() + "\n")
    assert run(f"capture {OWN} --sources static -f baseline -o base.json", folder, "--rules", RULES).code == 0
    line = f"gate base.json {OWN} --policy policy.yaml"
    assert run(line, folder, "--rules", RULES).code == 0
    found = run(line, folder, "--rules", str(other))
    assert found.code == 3
    assert re.search(r"rules.*my_rules.py.*other.py", found.stdout)


@pytest.mark.parametrize("verb", ["diff", "gate", "fits", "roofline", "graph"])
def test_rules_for_files_alone_are_refused(verb: str, folder: Path) -> None:
    assert run(f"capture {OWN} --sources static -o c.json", folder, "--rules", RULES).code == 0
    line = LINES[verb][0].replace("described", "c.json").replace(OWN, "c.json")
    for option in (("--rules", RULES), ("--trust-remote-code",)):
        found = run(line, folder, *option)
        assert (found.code, found.stdout) == (2, "")
        assert "these options need a target to count" in found.stderr
        assert option[0] in found.stderr


CODE = """\
import torch
from transformers import PretrainedConfig, PreTrainedModel
class OwnConfig(PretrainedConfig):
    model_type = "own"
    def __init__(self, width=4, **kwargs):
        super().__init__(**kwargs)
        self.width = width
class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(config.width, 6)
        self.post_init()
    def forward(self, x):
        return self.layer(x)
"""


@pytest.mark.parametrize("verb", ["diff", "gate", "fits", "roofline", "graph", "check", "prove", "sweep"])
def test_a_command_that_takes_a_snapshot_can_trust_it(verb: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the option its code is refused, which is named; with it the target is loaded, whatever comes then."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder / "cache"))
    (folder / "own").mkdir()
    (folder / "own/own.py").write_text(CODE)
    automatic = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    (folder / "own/config.json").write_text(json.dumps({"model_type": "own", "width": 5, "auto_map": automatic}))
    line = LINES[verb][0].replace("described", "hf:own").replace(OWN, "hf:own")
    before, after = run(line, folder), run(line, folder, "--trust-remote-code")
    assert (before.code, before.stdout) == (2, "")
    assert "names code of its own" in before.stderr
    assert "names code of its own" not in after.stderr
    assert after.code in ((2,) if verb == "prove" else (0, 1, 2, 3)), after


@pytest.mark.usefixtures("proof_in_this_process")
def test_a_request_of_a_proof_grants_what_the_line_grants(folder: Path) -> None:
    (folder / "run.yaml").write_text(f"target: described\nrules: [{RULES}]\nprove:\n  samples: 0\n")
    line = "prove --request run.yaml --jobs 1 -o p"
    assert run(line, folder).code == 2
    assert run(line, folder, "--rules", RULES).code == 0


def test_a_sweep_that_is_validated_later_has_its_rules(folder: Path) -> None:
    made = api.sweep("described", {"rows": [5]}, rules=RULES)
    assert in_force() == ()
    assert [one.verdict for one in made.validate(1, jobs=1)] == ["exact"]


def test_a_wrong_file_of_rules_is_refused_by_all(folder: Path) -> None:
    (folder / "none.py").write_text("x = 1\n")
    for make in (
        lambda: api.diff(OWN, OWN, rules=folder / "none.py"),
        lambda: api.sweep("described", {"rows": [5]}, rules=[folder / "none.py"]),
        lambda: api.graph(OWN, "mmd", rules=str(folder / "none.py")),
    ):
        with pytest.raises(BadInput, match="registers no operator rule"):
            make()
