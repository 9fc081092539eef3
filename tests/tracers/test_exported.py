from __future__ import annotations

from dataclasses import replace

import pytest
import sympy
import torch
from torch import nn

from costproof.algebra.symbols import sym
from costproof.ledger.errors import Incomplete
from costproof.models.families.deepseek_ocr import native
from costproof.models.specs import ExportJob, SymbolicSize
from costproof.opgraph.account import account
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.rules.sizes import nbytes
from costproof.tracers.exported import export_graph
from costproof.tracers.exporting import plain_sympy
from tests.tracers.small import PAGE, Wrapper, model, toy

N, B, S, P = sym("n"), sym("B"), sym("S"), sym("P")


def job(module: nn.Module, *, prefix: dict[str, str] | None = None, n: int = 3) -> ExportJob:
    return ExportJob(
        "toy", "stage", ("once",), Wrapper(module), {"part": "toy"} if prefix is None else prefix,
        {"x": torch.empty(n, 5, 6, device="meta")}, [SymbolicSize(("x",), 0, "n")],
    )  # fmt: skip


def test_shapes_are_in_our_symbols() -> None:
    exported = export_graph(job(toy()))
    (output,) = exported.graph.outputs
    assert output.shape == (N, 5, 12)
    inputs = {v for op in exported.graph.ops for v in op.tensors if v.origin == "input"}
    assert [v.shape for v in inputs] == [(N, 5, 6)]


def test_parameters_have_their_full_names() -> None:
    exported = export_graph(job(toy()))
    assert exported.parameters == {
        "toy.proj.weight": ((6, 6), "float32"),
        "toy.proj.bias": ((6,), "float32"),
        "toy.scale": ((12,), "float32"),
    }
    read = {v.name for op in exported.graph.ops for v in op.tensors if v.origin == "param"}
    assert read == set(exported.parameters)


def test_a_module_called_twice_has_two_calls() -> None:
    graph = export_graph(job(toy())).graph
    assert sorted((c.module, c.call) for c in graph.calls) == [("toy", 1), ("toy.proj", 1), ("toy.proj", 2)]
    assert [(op.module, op.call) for op in graph.ops if "linear" in op.name] == [("toy.proj", 1), ("toy.proj", 2)]


def test_costs_are_symbolic() -> None:
    # Two linear layers of 6 to 6 on n x 5 rows, 2 FLOPs per multiply-accumulate: 2 * 2 * 5n * 36.
    found = account(cost_graph(export_graph(job(toy())).graph), lambda module, call: ("stage", "once"))
    assert {n.module: n.exprs["flops"] for n in found.nodes if "flops" in n.exprs} == {"toy.proj": "720*n"}


def test_a_size_that_was_fixed_is_refused() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[0] == 3 else x

    with pytest.raises(Incomplete) as error:
        export_graph(job(Fixed()))
    assert "dimension 0 of x" in str(error.value) or "cannot export" in str(error.value)


def test_work_outside_the_model_is_refused() -> None:
    with pytest.raises(Incomplete, match="belongs to no module"):
        export_graph(job(toy(), prefix={"part.proj": "proj"}))


def test_a_product_of_a_wrapper_is_no_scaffolding() -> None:
    class Scored(Wrapper):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            zeros = torch.zeros_like(x).detach()  # these two are
            result: torch.Tensor = torch.tensordot(self.part(x), super().forward(zeros), 3)
            return result

    with pytest.raises(Incomplete, match="belongs to no module") as error:
        export_graph(replace(job(toy()), module=Scored(toy())))
    assert error.value.got == "aten.tensordot.default"


def test_an_export_that_fails_names_the_part() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("broken on purpose")

    with pytest.raises(Incomplete) as error:
        export_graph(job(Broken()))
    assert "stage, export toy" in str(error.value)
    assert "broken on purpose" in str(error.value)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (9 * N, 9, N),
        (6 * N, 4, sympy.floor(3 * N / 2)),
        (4 * N * B, 2 * B, 2 * N),
        (N + 1, 2, sympy.floor((N + 1) / 2)),
    ],
)
def test_floor_divisions_of_the_exporter(a: sympy.Expr, b: sympy.Expr, expected: sympy.Expr) -> None:
    from torch.utils._sympy.functions import FloorDiv

    assert sympy.simplify(plain_sympy(FloorDiv(a, sympy.sympify(b))) - expected) == 0


def test_the_step_keeps_batch_and_context_symbolic() -> None:
    jobs = {j.id: j for j in native.READER.export_jobs(model(), PAGE)}
    step = export_graph(jobs["step"])
    # 5 heads of 16; a step adds one position to each of 2 layers' keys and values.
    grown = sum(sympy.sympify(nbytes(v)) for v in step.graph.cache_outputs)
    held = sum(sympy.sympify(nbytes(v)) for v in step.cache_inputs)
    assert sympy.expand(held - 2 * 2 * (B * 5 * P * 16) * 2) == 0
    assert sympy.expand(grown - held - 2 * 2 * (B * 5 * 1 * 16) * 2) == 0
    (logits,) = step.graph.outputs
    assert logits.shape == (B, 1, 96)


def test_the_prefill_keeps_batch_and_length_symbolic() -> None:
    jobs = {j.id: j for j in native.READER.export_jobs(model(), PAGE)}
    prefill = export_graph(jobs["prefill"])
    (logits,) = prefill.graph.outputs
    assert logits.shape == (B, S, 96)
    assert "model.language_model.embed_tokens" not in {c.module for c in prefill.graph.calls}


def test_a_tied_parameter_belongs_to_the_module_that_names_it_first() -> None:
    with torch.device("meta"):
        tied = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)).eval()
    tied[1].weight = tied[0].weight
    assert export_graph(job(tied)).parameters == {"toy.0.weight": ((6, 6), "float32")}
