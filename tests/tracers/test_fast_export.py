"""What the exporter leaves out while we export: nothing that is counted, and its settings are put back."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import torch._dynamo
import torch.fx.config
from torch import Tensor, nn
from torch._export.passes import replace_set_grad_with_hop_pass as grads

from costproof.models.specs import ExportJob, SymbolicSize
from costproof.opgraph.costed import cost_graph
from costproof.patches.export import fast_export
from costproof.tracers.exported import export_graph
from tests.tracers.small import Wrapper

Settings = tuple[bool, bool]
SPLIT = "sequential_split"


MET: list[Settings] = []
"""What every forward met."""


def settings() -> Settings:
    """Whether stacks are left out, and whether operators are remembered."""
    return torch.fx.config.do_not_emit_stack_traces, torch._dynamo.config.fake_tensor_cache_enabled


class Row(nn.Module):
    """Layers in a row; a forward notes the settings that it meets."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """[B, 6] -> [B, 6]."""
        MET.append(settings())
        for layer in self.layers:
            x = layer(x)
        return x


def job(row: Row) -> ExportJob:
    inputs = {"x": torch.empty(4, 6, device="meta")}
    sizes = (SymbolicSize(("x",), 0, "B"),)
    return ExportJob("row", "stage", ("once",), Wrapper(row.to("meta")).eval(), {"part": ""}, inputs, sizes)


@pytest.mark.parametrize(("layers", "remembered"), [(1, False), (3, False), (4, True)])
def test_operators_are_remembered_for_many_layers_alone(layers: int, remembered: bool) -> None:
    before, row = settings(), Row(layers)
    MET.clear()
    with fast_export(row):
        assert settings() == (True, remembered)
    assert settings() == before == (False, True)
    export_graph(job(row))
    assert set(MET) == {(True, remembered)}
    assert settings() == before


def test_no_node_has_metadata_of_its_tensor() -> None:
    given = job(Row(1))
    with fast_export(given.module):
        graph = torch.export.export(given.module, (), dict(given.args)).graph
    assert {node.meta["tensor_meta"] for node in graph.nodes if node.op == "call_function"} == {None}


def test_settings_are_put_back_after_an_error() -> None:
    before = settings()
    with pytest.raises(ValueError, match="stopped"), fast_export(Row(1)):
        raise ValueError("stopped")
    assert settings() == before


def test_what_a_user_has_switched_off_stays_off() -> None:
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
        with fast_export(Row(9)):
            assert settings() == (True, False)
        assert settings() == (False, False)


def test_the_graph_costs_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for few in (0, 9):
        monkeypatch.setattr("costproof.patches.export._MAX_UNCACHED_LAYERS", few)
        work = cost_graph(export_graph(job(Row(5))).graph)
        found.append([(op.name, op.module, [v.shape for v in op.outputs], cost) for op, cost in
                      zip(work.graph.ops, work.costs, strict=True)])  # fmt: skip
    assert found[0] == found[1]
    assert len(found[0]) == 5


def test_unbacked_symbols_are_bound_as_torch_binds_them() -> None:
    """Where there is one; the graph without any is not searched."""

    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = torch.nonzero(x)
            torch._check(rows.shape[0] == 3)  # type: ignore[no-untyped-call]  # torch then forgets that it bound a symbol
            return torch.nonzero(rows) + 1

    def bound(program: torch.export.ExportedProgram) -> list[dict[str, str]]:
        return [{str(k): str(v) for k, v in n.meta.get("unbacked_bindings", {}).items()} for n in program.graph.nodes]

    module, args = Chosen(), (torch.ones(3),)
    plain = bound(torch.export.export(module, args))
    with fast_export(module):
        assert bound(torch.export.export(module, args)) == plain
    assert any(plain)
    searched = "torch.fx.experimental.symbolic_shapes._free_unbacked_symbols_with_path"
    with mock.patch(searched, side_effect=AssertionError), fast_export(module):
        torch.export.export(Row(1), (torch.zeros(2, 6),))


def test_an_exported_graph_is_compiled_when_it_is_called() -> None:
    row, given = Row(1), torch.ones(2, 6)
    with fast_export(row):
        program = torch.export.export(row, (given,))
    assert "_LazyGraphModule" in {base.__name__ for base in type(program.graph_module).__mro__}
    assert torch.equal(program.module()(given), row(given))


@pytest.mark.parametrize("enabled", [False, True])
def test_settings_of_gradients_are_left_out_where_they_change_nothing(enabled: bool) -> None:
    """A part that enables gradients has a graph of its own, as torch makes it; one that disables them has not."""

    class Part(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.set_grad_enabled(enabled):
                y = x.cos()
            return y + x

    def nodes() -> list[tuple[str, str, str, str]]:
        graph = torch.export.export(Part(), (torch.ones(3),)).graph
        return [(n.name, str(n.target), str(n.args), str(n.meta.get("nn_module_stack"))) for n in graph.nodes]

    with torch.no_grad():
        plain = nodes()
        with fast_export(Part()), mock.patch.object(grads, SPLIT, wraps=getattr(grads, SPLIT)) as split:
            assert nodes() == plain
        assert split.called is enabled
    assert any("wrap_with_set_grad_enabled" in target for _, target, _, _ in plain) is enabled
