"""Every field of a capture, changed by itself: the same work for a reason, a finding of the gate, or exit 3.

The toy of ``tests/reports`` is the base. A field that is not in the table fails the first test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from datetime import date
from typing import Any, Final

import pytest

from costproof.compare.gate.judge import judge
from costproof.compare.gate.policy import metrics, policy_from_text
from costproof.ledger.baseline import Baseline, Folded, RowTree, fold_capture
from costproof.ledger.capture import Capture
from costproof.ledger.errors import BadInput, Problems
from costproof.ledger.mesh import Mesh, Parallel
from costproof.ledger.metrics import METRICS, Conventions
from costproof.ledger.node import CostNode, Ledger, StatedDifference, UnknownOp
from costproof.ledger.workload import ConfigValue, Invocation, ModuleKind, TargetInfo, TensorSpec, Workload
from tests.support.toy import toy

Change = Callable[[Capture], Capture]
OVER: Final = 1
INCOMPLETE: Final = 3


def of(part: str, **values: Any) -> Change:
    """Change fields of ``target``, ``workload`` or ``conventions``."""
    return lambda c: replace(c, **{part: replace(getattr(c, part), **values)})


def itself(**values: Any) -> Change:
    return lambda c: replace(c, **values)


def call(**values: Any) -> Change:
    """Change the first call."""
    return lambda c: replace(c, invocations=(replace(c.invocations[0], **values), *c.invocations[1:]))


def spec(**values: Any) -> Change:
    return lambda c: call(inputs=(replace(c.invocations[0].inputs[0], **values),))(c)


def ledgers(**values: Any) -> Change:
    """Change every ledger."""
    return lambda c: replace(c, ledgers=tuple(replace(x, **values) for x in c.ledgers))


def nodes(picks: Callable[[CostNode], bool], **values: Any) -> Change:
    """Change the nodes that a rule picks, in every ledger."""

    def change(c: Capture) -> Capture:
        found = [replace(x, nodes=tuple(replace(n, **values) if picks(n) else n for n in x.nodes)) for x in c.ledgers]
        return replace(c, ledgers=tuple(found))

    return change


def decode(node: CostNode) -> bool:
    return "flops" in node.costs and node.stage == "decode"


SAME: Final[dict[str, tuple[Change, str]]] = {
    "Capture.formulas": (itself(formulas={}), "texts about formulas"),
    "Capture.symbols": (itself(symbols={}), "texts about symbols"),
    "Capture.callgraph": (itself(callgraph=None), "who calls whom is no cost"),
    "Capture.trace_check": (itself(trace_check=None), "the sources are compared by compare"),
    "Capture.run": (itself(run=None), "the same work counts the same on every device"),
    "Capture.lacking": (itself(lacking={"isolated": "not asked for"}), "a source that decides and is gone is seen"),
    "Capture.judge": (itself(judge=None), "it checks a source and is none"),
    "Capture.counters": (itself(counters=None), "others' numbers"),
    "Capture.padding": (itself(padding=None), "by formulas of the same workload"),
    "Capture.peaks": (itself(peaks=()), "no policy limits them"),
    "Capture.whole": (itself(whole=None), "follows from the counted layers; a cut model is seen"),
    "Capture.modules": (itself(modules={"a": (ModuleKind("Linear", {}, {}, 1),)}), "a change of the model is judged"),
    "Capture.parallel": (
        itself(parallel=Parallel(Mesh(tp=2), 0, "a plan", (), (), {}, ())),
        "the ledgers have the rank",
    ),
    "Capture.recorded": (itself(recorded={"static": ("flops",)}), "compare judges it"),
    "Ledger.sizes": (ledgers(sizes={"sam[global]": {"n": 2}}), "compare judges them"),
    "Conventions.vector": (of("conventions", vector="none"), "the toy has no vector FLOPs to limit"),
    "TargetInfo.config_hash": (of("target", config_hash="f" * 12), "a change of the model is judged"),
    "TargetInfo.symbols": (of("target", symbols={"sam_hidden": 5}), "a change of the model is judged"),
    "TargetInfo.waived": (of("target", waived={}), "says what was not used"),
    "TargetInfo.changed": (of("target", changed={"a": "b"}), "says where the model is not the published one"),
    "TargetInfo.config": (of("target", config={"width": 5}), "a change of the model is judged"),
    "TargetInfo.dtypes": (of("target", dtypes=("float32",)), "bytes decide, and they are limited"),
    "Workload.name": (of("workload", name="other"), "a name; the settings decide"),
    "Workload.what": (of("workload", what="two pictures"), "the settings in words"),
    "Ledger.notes": (ledgers(notes=("a note",)), "texts"),
    "Ledger.attributes_bytes": (ledgers(attributes_bytes=7), "fits has them; a gate limits costs of modules"),
    "Ledger.bounds": (ledgers(bounds=True), "what bounds of time know, which no gate limits"),
    "Ledger.differences": (
        ledgers(differences=(StatedDifference("text", "stored_bytes", "a copy", 2),)),
        "compare judges them",
    ),
    "Ledger.source": (itself(), "the names of the sources are the keys of the comparison: see the next tests"),
    "CostNode.invocation": (nodes(decode, invocation="again"), "a stage is limited over all of its calls"),
    "CostNode.module": (nodes(decode, module="text.other"), "a stage is limited whatever its modules are called"),
    "CostNode.kind": (nodes(decode, kind="bmm"), "a kernel by another name that costs as much"),
    "CostNode.exprs": (nodes(decode, exprs={}), "the numbers decide"),
    "CostNode.owner": (nodes(decode, owner="other"), "the name of a formula"),
    "CostNode.evidence": (nodes(decode, evidence=()), "names of operators"),
    "CostNode.role": (nodes(decode, role="text.head"), "a stage is limited whatever its modules are called"),
}
"""What passes, with the reason."""

CAUGHT: Final[dict[str, tuple[Change, int, str]]] = {
    "Capture.conventions": (of("conventions", mla="absorbed"), INCOMPLETE, "mla: none → absorbed"),
    "Capture.target": (of("target", name="other"), INCOMPLETE, "the base is of toy, the head of other"),
    "Capture.workload": (of("workload", inputs={}), INCOMPLETE, "side: 64 → none, grid: 3x1 → none"),
    "Capture.environment": (itself(environment={"torch": "2.14.0"}), INCOMPLETE, "torch: 2.13.0 → 2.14.0"),
    "Capture.invocations": (lambda c: replace(c, invocations=c.invocations[:1]), INCOMPLETE, "inputs.decode/steps"),
    "Capture.ledgers": (lambda c: replace(c, ledgers=c.ledgers[:1]), INCOMPLETE, "no static and no dynamic source"),
    "Conventions.unit": (of("conventions", unit="mac"), OVER, "FLOPs over"),
    "Conventions.causal": (of("conventions", causal="triangle"), INCOMPLETE, "causal is full in the base"),
    "Conventions.logits": (of("conventions", logits="last"), INCOMPLETE, "logits: all → last"),
    "Conventions.expert_kernel": (of("conventions", expert_kernel="eager"), INCOMPLETE, "grouped_mm → eager"),
    "Conventions.attention": (of("conventions", attention="eager"), INCOMPLETE, "attention: sdpa → eager"),
    "Conventions.mla": (of("conventions", mla="expanded"), INCOMPLETE, "mla: none → expanded"),
    "Conventions.dtype": (of("conventions", dtype="float32"), INCOMPLETE, "dtype: bfloat16 → float32"),
    "Conventions.window_padding": (of("conventions", window_padding="skipped"), INCOMPLETE, "window_padding is"),
    "Conventions.activations": (of("conventions", activations="all"), INCOMPLETE, "activations is module-boundary"),
    "TargetInfo.name": (of("target", name="renamed"), INCOMPLETE, "the base is of toy, the head of renamed"),
    "TargetInfo.implementation": (of("target", implementation="vendor"), INCOMPLETE, "classes: native → vendor"),
    "TargetInfo.stages": (of("target", stages=("sam", "clip")), INCOMPLETE, "the head has no stage decode"),
    "TargetInfo.cut": (of("target", cut={"layers": "2 of 12"}), INCOMPLETE, "a part of its model: layers 2 of 12"),
    "TargetInfo.quantised": (of("target", quantised={"weights": "fp8"}), INCOMPLETE, "the checkpoint is quantised"),
    "Workload.text_tokens": (of("workload", text_tokens=3), INCOMPLETE, "text_tokens: 2 → 3"),
    "Workload.new_tokens": (of("workload", new_tokens=4), INCOMPLETE, "new_tokens: 3 → 4"),
    "Workload.batch": (of("workload", batch=2), INCOMPLETE, "batch: 1 → 2"),
    "Workload.dtype": (of("workload", dtype="float16"), INCOMPLETE, "dtype: bfloat16 → float16"),
    "Workload.attention": (of("workload", attention="eager"), INCOMPLETE, "attention: sdpa → eager"),
    "Workload.logits": (of("workload", logits="last"), INCOMPLETE, "logits: all → last"),
    "Workload.experts": (of("workload", experts="eager"), INCOMPLETE, "experts: grouped_mm → eager"),
    "Workload.inputs": (of("workload", inputs={"side": 32, "grid": (3, 1)}), INCOMPLETE, "side: 64 → 32"),
    "Workload.arguments": (
        of("workload", arguments={"mask": "None"}), INCOMPLETE, "inputs.mask: none → None",
    ),
    "Invocation.stage": (call(stage="clip"), INCOMPLETE, "inputs.sam/global"),
    "Invocation.id": (call(id="other"), INCOMPLETE, "inputs.sam/global"),
    "Invocation.calls": (call(calls=2), INCOMPLETE, "→ 2 x bfloat16[1,3,64,64]"),
    "Invocation.symbols": (call(symbols={"n": 1, "H": 32, "b": 2}), INCOMPLETE, "H 64, b 2, n 1 → "),
    "Invocation.inputs": (call(inputs=()), INCOMPLETE, "→ no tensor at"),
    "TensorSpec.shape": (spec(shape=(2, 3, 64, 64)), INCOMPLETE, "→ bfloat16[2,3,64,64]"),
    "TensorSpec.dtype": (spec(dtype="float32"), INCOMPLETE, "→ float32[1,3,64,64]"),
    "Ledger.nodes": (ledgers(nodes=()), INCOMPLETE, "the analytic source of the head counts nothing in sam"),
    "Ledger.metrics": (ledgers(metrics=("params",)), INCOMPLETE, "the head does not have it"),
    "Ledger.stages": (ledgers(stages=("sam",)), INCOMPLETE, "the head does not tell it"),
    "Ledger.unknown_ops": (
        ledgers(unknown_ops=(UnknownOp("aten.new", "sam", "sam.new", 1, None, "no rule"),)),
        INCOMPLETE, "the head does not tell it",
    ),
    "Ledger.conventions": (ledgers(conventions={"attention": "eager"}), INCOMPLETE, "attention: sdpa → eager"),
    "CostNode.stage": (nodes(decode, stage="sam"), OVER, ""),
    "CostNode.costs": (nodes(decode, costs={"flops": 865}), OVER, ""),
}  # fmt: skip
"""What does not pass: exit code, and what the message says."""

TYPES: Final = (Capture, Conventions, TargetInfo, Workload, Invocation, TensorSpec, Ledger, CostNode)
LIMITS: Final = "".join(
    f"  - {{metric: {m}, increase: 0}}\n  - {{metric: {m}, stage: '*', increase: 0}}\n"
    for m in metrics()
    if any(m in n.costs for x in toy().ledgers for n in x.nodes)
)
POLICY: Final = policy_from_text(f"costproof_policy: 1\nlimits:\n{LIMITS}", where="policy.yaml")


def gate(head: Capture) -> tuple[int, str]:
    """Exit code, and all that is said."""
    found = judge(fold_capture(toy()), fold_capture(head), POLICY, date(2026, 1, 1))
    checks = (f"{METRICS[c.metric].title} {c.status} {c.why}" for c in found.checks)
    return found.exit_code, " ".join((*found.incomplete, *checks))


def test_every_field_of_a_capture_is_in_the_table() -> None:
    assert {f"{t.__name__}.{f.name}" for t in TYPES for f in fields(t)} == {*SAME, *CAUGHT}


def test_the_toy_itself_passes() -> None:
    assert gate(toy())[0] == 0


@pytest.mark.parametrize("name", SAME)
def test_the_same_work_passes(name: str) -> None:
    change, _reason = SAME[name]
    assert gate(change(toy()))[0] == 0


@pytest.mark.parametrize("name", CAUGHT)
def test_other_work_and_higher_costs_never_pass(name: str) -> None:
    change, code, says = CAUGHT[name]
    found = gate(change(toy()))
    assert (found[0], says in found[1]) == (code, True), found[1]


FLOPS: Final = policy_from_text("costproof_policy: 1\nlimits:\n  - {metric: flops, increase: 0}\n", where="policy.yaml")


def one_source(rows: RowTree, stages: tuple[str, ...] = ("sam",)) -> Baseline:
    found = fold_capture(toy())
    return replace(found, sources={"analytic": Folded(("flops",), stages, rows)})


@pytest.mark.parametrize(
    ("side", "says"),
    [
        (replace(fold_capture(toy()), sources={}), "source"),
        (one_source({}), "counts nothing in sam"),
        (one_source({"sam": {}}), "counts nothing in sam"),
        (one_source({"sam": {"lin": {}}}), "counts nothing in sam"),
        (one_source({}, stages=()), "counts no stage"),
        (one_source({"sam": {"lin": {"linear": {"flops": None}}}}), "does not tell it"),
    ],
)
@pytest.mark.parametrize("as_base", [True, False])
def test_nothing_and_unknown_numbers_never_pass(side: Baseline, says: str, as_base: bool) -> None:
    """An empty side costs 0, and would pass every limit."""
    other = one_source({"sam": {"lin": {"linear": {"flops": 7}}}})
    target = replace(other.target, stages=("sam",))
    base, head = (replace(s, target=target) for s in ((side, other) if as_base else (other, side)))
    found = judge(base, head, FLOPS, date(2026, 1, 1))
    # 7 FLOPs where the base has none are also above the limit.
    assert found.exit_code == (1 if as_base and "nothing in" in says else INCOMPLETE)
    assert says in " ".join((*found.incomplete, *(c.why for c in found.checks)))


@pytest.mark.parametrize(("head", "code"), [("2.13.0", 0), ("2.13.0+cu128", 0), ("2.13.0+ours", 3), ("2.13.1+cpu", 3)])
def test_the_device_that_torch_is_built_for_is_no_other_version(head: str, code: int) -> None:
    """A base is counted on a machine with a GPU, a head on one without."""
    base, other = (
        fold_capture(replace(toy(), environment={**toy().environment, "torch": version}))
        for version in ("2.13.0+cpu", head)
    )
    policy = policy_from_text(f"costproof_policy: 1\nlimits:\n{LIMITS}", where="policy.yaml")
    assert judge(base, other, policy, date(2026, 1, 1)).exit_code == code


def test_other_versions_can_be_let_be() -> None:
    """The formulas alone do not depend on torch; a policy may judge an upgrade by its numbers."""
    head = fold_capture(replace(toy(), environment={**toy().environment, "torch": "2.14.0"}))
    for top, code in (("", 3), ("versions: any\n", 0), ("sources: analytic\n", 0), ("inputs: any\n", 3)):
        policy = policy_from_text(f"costproof_policy: 1\n{top}limits:\n{LIMITS}", where="policy.yaml")
        assert judge(fold_capture(toy()), head, policy, date(2026, 1, 1)).exit_code == code, top


@pytest.mark.parametrize(
    "text",
    [
        "limts: []", "sources: []", "sources: [statc]", "inputs: anything", "versions: old", "version: any",
        "limits:\n  - {metric: flops, increase: 0, stage: ''}", "limits:\n  - {metric: flops, increase: 0, role:}",
        "limits:\n  - {metric: flops, incraese: 0}", "limits:\n  - {metric: flops, increase: -1}",
        "limits:\n  - {metric: flops, increase: nan}", "limits:\n  - {metric: flops, increase: inf}",
        "limits:\n  - {metric: flops, increase: 1e400}", "limits:\n  - {metric: flops, budget: 5 %}",
        "limits:\n  - {metric: flops, increase: .5}", "limits:\n  - {metric: flop, increase: 0}", "limits: {}",
        "allowed:\n  - {metric: flops, increase: 1, reason: r, until: 2026-13-01}",
    ],
)  # fmt: skip
def test_a_policy_with_a_slip_is_refused(text: str) -> None:
    rest = "" if text.startswith("limits") else "limits:\n  - {metric: flops, increase: 0}\n"
    with pytest.raises((BadInput, Problems)):
        policy_from_text(f"costproof_policy: 1\n{text}\n{rest}", where="policy.yaml")


@pytest.mark.parametrize("limit", ["stage: 'x*'", "stage: dcode", "role: 'nothing.*'"])
def test_a_pattern_that_matches_nothing_is_refused(limit: str) -> None:
    policy = policy_from_text(
        f"costproof_policy: 1\nlimits:\n  - {{metric: flops, increase: 0, {limit}}}\n", where="policy.yaml"
    )
    with pytest.raises(Problems):
        judge(fold_capture(toy()), fold_capture(toy()), policy, date(2026, 1, 1))


@pytest.mark.parametrize(("keys", "code"), [(None, INCOMPLETE), ({"width": 4}, 0)])
def test_shapes_between_stages_follow_from_keys_and_from_nothing_else(
    keys: dict[str, ConfigValue] | None, code: int
) -> None:
    """With keys the settings say what goes in from outside, and a wider model hands more from stage to stage."""
    base = of("target", config=keys)(toy())
    wider = of("target", symbols={"sam_hidden": 5}, config=keys and {"width": 5})(spec(shape=(1, 3, 32, 32))(toy()))
    assert judge(fold_capture(base), fold_capture(wider), POLICY, date(2026, 1, 1)).exit_code == code
