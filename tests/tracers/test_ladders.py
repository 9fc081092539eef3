"""What is counted where the first way of counting is not open, and that it is said."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

from costproof.ledger.errors import Incomplete
from costproof.ledger.node import Ledger, total
from costproof.ledger.run import RunOptions
from costproof.ledger.workload import TargetInfo, Workload
from costproof.models.generic.export_wrappers import around
from costproof.models.generic.makers import known
from costproof.models.specs import ExportJob, Run, SymbolicSize
from costproof.opgraph.account import account
from costproof.opgraph.costed import cost_graph
from costproof.tracers.cpu_fallback import trace_run
from costproof.tracers.exported import export_graph
from costproof.tracers.exporting import with_numbers
from costproof.tracers.hooks import trace_hooks
from costproof.tracers.static import exported_ledger
from costproof.tracers.torchlens_trace import trace_graph
from tests.tracers.small import Wrapper


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


class Looping(nn.Module):
    """One linear layer for every row: a loop over a size, which no export keeps as a symbol."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S, 4]."""
        return torch.stack([self.fc(row) for row in x])


class Fourier(nn.Module):
    """A transform over the rows: its measure is a logarithm, which is a whole number at numbers alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S, 4]."""
        result: torch.Tensor = torch.fft.rfft(x, dim=0).real
        return result


class Looking(nn.Module):
    """Takes as many turns as a number says."""

    def __init__(self, count: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.count, self.fc = count, nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 4]."""
        for _ in range(int(self.count(x).item())):
            x = self.fc(x)
        return x


@dataclass(frozen=True)
class Toy:
    """As much of a target as a static ledger asks for."""

    stages: tuple[str, ...]
    options: RunOptions = RunOptions()  # noqa: RUF009

    def info(self) -> TargetInfo:
        """No symbols."""
        return TargetInfo("toy", "native", "0" * 12, {}, self.stages)

    def stages_of(self, path: str, workload: Workload) -> tuple[str, ...]:
        """All."""
        return self.stages


def static(sizes: dict[str, int], modules: dict[str, nn.Module], steps: str = "", *, elsewhere: bool = False) -> Ledger:
    """The static ledger of some modules, each a stage."""
    symbol = "P" if steps else "S"
    jobs = [
        ExportJob(
            s,
            s,
            ("i",),
            Wrapper(m),
            {"part": ""},
            {"x": meta(3, 4)},
            [SymbolicSize(("x",), 0, symbol)],
            repeated=bool(steps),
            elsewhere=elsewhere,
        )
        for s, m in modules.items()
    ]
    with torch.device("meta"):
        values = {(s, "i"): sizes for s in modules}
        toy: Any = Toy(tuple(modules))
        return exported_ledger(toy, Workload("w", 0, sizes.get("N", 0), 1), nn.Sequential(), jobs, toy.stages, values)


def test_a_loop_over_a_size_is_exported_at_the_size_of_the_run() -> None:
    with torch.device("meta"):
        model = Looping()
    ledger = static({"S": 6}, {"loop": model})
    # Six rows of 4 by a 4 x 4 matrix, 2 FLOPs each.
    assert total(ledger.nodes, "flops") == 6 * 2 * 4 * 4 == 192
    assert not any("flops" in n.exprs for n in ledger.nodes)
    (note,) = [n for n in ledger.notes if "loop" in n]
    assert note.startswith("export loop: at the sizes of this workload alone, not in symbols: ")


def test_an_operator_without_a_cost_in_symbols_is_counted_at_the_size_of_the_run() -> None:
    ledger = static({"S": 6}, {"fourier": Fourier()})
    # Four columns of 6 real numbers: 5 x 6 x 3 / 2 each.
    assert (total(ledger.nodes, "vector_flops"), ledger.unknown_ops) == (4 * 45, ())
    (note,) = ledger.notes
    assert note == (
        "export fourier: at the sizes of this workload alone, not in symbols: "
        "operators have no cost formula in symbols, only numbers; got aten.fft_rfft"
    )


def test_decode_steps_that_loop_are_summed_over_those_that_were_exported() -> None:
    with torch.device("meta"):
        model = Looping()
    # Contexts 5 to 9, of which 5, 7 and 9 are exported: 5 + 6 + 7 + 8 + 9 = 35 rows of 2 * 4 * 4.
    ledger = static({"P": 5, "N": 5}, {"decode": model}, "P")
    assert total(ledger.nodes, "flops") == 35 * 32 == 1120


class Cut(nn.Module):
    """A linear layer for what is left of a table of 8 rows behind the context, at least one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Buffer(torch.empty(8, 4))
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[max(8 - P, 1), 4]."""
        result: torch.Tensor = self.fc(self.table[: torch.sym_max(8 - x.shape[0], 1)])  # type: ignore[no-untyped-call]
        return result


def test_steps_without_a_closed_sum_are_counted_one_by_one() -> None:
    with torch.device("meta"):
        model = Cut()
    # Contexts 5, 6, 7: 3 + 2 + 1 rows of 2 * 4 * 4. Near the end of the table the line is bent: nothing is claimed.
    assert total(static({"P": 5, "N": 3}, {"decode": model}, "P").nodes, "flops") == 6 * 32 == 192
    bent = static({"P": 5, "N": 5}, {"decode": model}, "P")
    assert total(bent.nodes, "flops") is None
    assert any("is not a straight line" in note for note in bent.notes)


def test_a_stage_that_cannot_be_exported_is_absent_with_the_reason() -> None:
    with torch.device("meta"):
        looking, whole = Looking(torch.sum), nn.Linear(4, 4, bias=False)
    ledger = static({"S": 6}, {"looking": looking, "whole": whole})
    assert ledger.stages == ("whole",)
    assert {n.stage for n in ledger.nodes} == {"whole"}
    assert total(ledger.nodes, "flops") == 192
    assert any(n.startswith("looking is not covered: failed: torch.export cannot export") for n in ledger.notes)
    with pytest.raises(Incomplete, match="cannot export"):
        static({"S": 6}, {"looking": looking})


class Chosen(nn.Module):
    """A linear layer for the rows that are not negative."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, 4]."""
        result: torch.Tensor = self.fc(x[x[:, 0] >= 0])
        return result


class Experts(nn.Module):
    """A product for every expert that a row is sent to, in a loop over those that got some."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3, bias=False)
        self.experts = nn.Parameter(torch.empty(3, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S, 4]."""
        chosen = torch.topk(self.fc(x), 2).indices
        sent = nn.functional.one_hot(chosen, 3).permute(2, 1, 0)
        result = torch.zeros_like(x)
        for hit in torch.greater(sent.sum(dim=(-1, -2)), 0).nonzero():
            _, rows = torch.where(sent[hit[0]])
            result.index_add_(0, rows, x[rows] @ self.experts[hit[0]])
        return result


class Weighed(nn.Module):
    """Takes as many turns as its weights sum up to, from where the numbers of a grid are."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor, grid: Any = None) -> torch.Tensor:
        """[S, 4]."""
        x = x if grid is None else x + torch.zeros(4, device=grid.device)
        for _ in range(min(int(self.fc.weight.sum()), 20)):  # numbers that nobody set may be large
            x = self.fc(x)
        return x


class Listed(nn.Module):
    """Rows up to an end that stands in a list with a number of the code, as ends of sequences do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S, 4]."""
        begin, end = torch.tensor([0, x.sum().to(torch.long) // 8], device=x.device).cumsum(0).tolist()
        result: torch.Tensor = self.fc(x[begin:end])
        return result


# 6 x 4 ones are 24 that are not zero: so many turns of 6 rows; or all of the 6 rows; or each of the 6 for two of three
# experts, all of which are equal, and 3 of 4 columns for the router; or 16 ones of weights; or 24 / 8 rows.
DECIDED: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "looking": (lambda: Looking(torch.count_nonzero), 24 * 6 * 32),
    "chosen": (Chosen, 6 * 32),
    "experts": (Experts, 6 * 2 * 32 + 6 * 24),
    "weighed": (Weighed, 16 * 6 * 32),
    "listed": (Listed, 3 * 32),
}


@pytest.mark.parametrize("name", DECIDED)
def test_what_numbers_decide_is_exported_with_ones(name: str) -> None:
    make, flops = DECIDED[name]
    with torch.device("meta"):
        model = make()
    ledger = static({"S": 6}, {name: model}, elsewhere=True)
    assert (ledger.stages, total(ledger.nodes, "flops")) == ((name,), flops)
    assert any(note.startswith(f"export {name}: with ones for numbers, because: ") for note in ledger.notes)
    assert all(p.is_meta for p in model.parameters())


def test_numbers_beside_the_arguments_are_where_those_of_an_export_are() -> None:
    with torch.device("meta"):
        model = around(Weighed(), ("x",), {"grid": known([[1, 2, 3]]).tensor})
    graph = export_graph(with_numbers(ExportJob("e", "s", ("i",), model, {"part": ""}, {"x": meta(6, 4)}))).graph
    # 16 turns of 6 rows by 4 x 4.
    assert total(account(cost_graph(graph), lambda module, call: ("s", "i")).nodes, "flops") == 16 * 6 * 32 == 3072


def looking_run(count: Callable[[torch.Tensor], torch.Tensor], *, elsewhere: bool = True) -> Run:
    with torch.device("meta"):
        model = Looking(count)
    return Run("r", model, {"x": meta(2, 4)}, lambda module, call: ("s", "i"), elsewhere=elsewhere)


def test_a_run_that_looks_at_numbers_is_taken_to_the_cpu() -> None:
    # The sum of 2 x 4 ones: 8 turns of 2 rows by 4 x 4.
    run = looking_run(torch.sum)
    found = trace_run(run)
    cost = account(cost_graph(found.forward.graph), lambda module, call: ("s", "i"))
    assert total(cost.nodes, "flops") == 8 * 2 * 2 * 4 * 4 == 512
    assert found.hooks.call_counts == {"(root)": 1, "fc": 8}
    (note,) = found.notes
    assert note.startswith("run r: on the CPU with ones for numbers, because: ")
    assert all(p.device.type == "meta" for p in run.model.parameters())
    with pytest.raises(Incomplete, match="TorchLens cannot trace"):
        trace_run(looking_run(torch.sum, elsewhere=False))


def test_a_run_brings_numbers_of_its_own() -> None:
    def real() -> Run:
        return Run("r", Looking(torch.sum), {"x": torch.full((2, 4), 0.25)}, run.locate)

    run = replace(looking_run(torch.sum), real=real)
    assert trace_run(run).hooks.call_counts == {"(root)": 1, "fc": 2}


def test_a_model_too_large_for_numbers_says_why_meta_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costproof.snapshots.copies.MOST_BYTES", 63)
    with pytest.raises(Incomplete, match="TorchLens cannot trace the model"):
        trace_run(looking_run(torch.sum))


class Idle(nn.Module):
    """A linear layer among modules that hand on what they get."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.rest = nn.Sequential(nn.Identity(), nn.Identity())
        self.last = nn.Flatten(0, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 4]."""
        result: torch.Tensor = self.last(self.rest(self.fc(x)))
        return result


def test_calls_that_run_no_operator_are_not_compared() -> None:
    with torch.device("meta"):
        model = Idle()
    run = Run("r", model, {"x": meta(3, 4)}, lambda module, call: ("s", "i"))
    job = ExportJob("e", "s", ("i",), Wrapper(model), {"part": ""}, run.kwargs, [])
    assert trace_hooks(run).call_counts["rest.1"] == 1
    for graph in (trace_graph(run).graph, export_graph(job).graph):
        nodes = account(cost_graph(graph), lambda module, call: ("s", "i")).nodes
        assert {n.module: n.costs["calls"] for n in nodes if "calls" in n.costs} == {"": 1, "fc": 1, "last": 1}


def test_a_compiled_model_has_the_names_of_the_one_inside() -> None:
    with torch.device("meta"):
        plain = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.GELU()))
        inner: Any = torch.compile(plain[1], backend="eager")
        half = nn.Sequential(plain[0], inner)
    seen = []
    models: list[Any] = [plain, torch.compile(plain, backend="eager"), half]
    for model in models:
        job = ExportJob("e", "s", ("i",), Wrapper(model), {"part": ""}, {"x": meta(3, 4)}, [])
        found = export_graph(job)
        nodes = account(cost_graph(found.graph), lambda module, call: ("s", "i")).nodes
        seen.append((sorted(found.parameters), {(n.module, n.kind): n.costs for n in nodes}))
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][0] == ["0.bias", "0.weight", "1.0.bias", "1.0.weight"]


def hooked(model: nn.Module) -> nn.Module:
    model[1].register_forward_hook(lambda module, args, output: None)  # type: ignore[index]
    return model


def partial(model: nn.Module) -> nn.Module:
    model.forward = functools.partial(model.forward)
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda model: model,
    "in training": lambda model: model.train(),
    "hooked": hooked,
    "partial": partial,
    "parallel": lambda model: nn.DataParallel(model),
    "in a sequence": lambda model: nn.Sequential(model),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_is_around_a_model_costs_nothing(wrapper: str) -> None:
    with torch.device("meta"):
        shared = nn.Linear(4, 4, bias=False)
        tied = nn.Linear(4, 4, bias=False)
        tied.weight = shared.weight
        model = WRAPPERS[wrapper](nn.Sequential(shared, nn.Sequential(nn.Dropout(), shared), tied, nn.ReLU()))
    job = ExportJob("e", "s", ("i",), Wrapper(model), {"part": ""}, {"x": meta(3, 4)}, [])
    run = Run("r", Wrapper(model), {"x": meta(3, 4)}, lambda module, call: ("s", "i"))
    for graph in (export_graph(job).graph, trace_graph(run).graph):
        found = account(cost_graph(graph), lambda module, call: ("s", "i"))
        assert not found.unknown
        # Three products of 3 rows by 4 x 4; one ReLU of 12 elements.
        assert (total(found.nodes, "flops"), total(found.nodes, "vector_flops")) == (3 * 3 * 2 * 16, 12)
        assert total(found.nodes, "weight_read_bytes") == 3 * 4 * 16
