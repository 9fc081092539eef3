"""One small module per operator: an export and a run count the same, and what is worked out by hand.

The input x is (3, 4, 10) unless said: 120 elements, 12 rows. All modules of a device are traced once, together; each
is a child of its own. FLOPs are 2 per multiply-accumulate, held against torch's own counter where it knows the
operator; vector work is that of docs/conventions.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import costproof
from costproof.compare.kinds import kind_of
from costproof.models.specs import ExportJob
from costproof.opgraph.costed import cost_graph
from costproof.opgraph.graph import Graph
from costproof.opgraph.rules.registry import UnknownCost
from costproof.tracers.exported import export_graph
from costproof.tracers.torchlens_trace import trace_forward
from tests.tracers.small import Wrapper

Body = Callable[[Any, Tensor], Tensor]
Found = dict[str, tuple[int, int, set[str]]]
"""FLOPs and vector FLOPs of every case, and the kinds of operator that a comparison of sources has for the first."""


class Case(nn.Module):
    """A function of itself and x, with parameters and modules of its own."""

    def __init__(self, body: Body, **held: tuple[int, ...] | nn.Module) -> None:
        super().__init__()
        self.body = body
        for name, given in held.items():
            setattr(self, name, given if isinstance(given, nn.Module) else nn.Parameter(torch.randn(given)))

    def forward(self, x: Tensor) -> Tensor:
        """What the body makes."""
        return self.body(self, x)


class Cases(nn.Module):
    """All cases, one after another."""

    def __init__(self, cases: dict[str, Case]) -> None:
        super().__init__()
        self.cases = nn.ModuleDict(cases)

    def forward(self, x: Tensor) -> list[Tensor]:
        """All results."""
        return [case(x) for case in self.cases.values()]


def recurrent(layer: nn.Module) -> Case:
    return Case(lambda m, x: m.layer(x)[0], layer=layer)


def cell(layer: nn.Module, state: int = 0) -> Case:
    return Case(lambda m, x: m.layer(x[0])[state] if state else m.layer(x[0]).sum(), layer=layer)


def picture(mode: str) -> Body:
    return lambda m, x: functional.grid_sample(
        x.new_empty(2, 5, 6, 7), x.new_empty(2, 3, 4, 2), mode, align_corners=False
    )


def square(x: Tensor, n: int = 4) -> Tensor:
    return x.new_empty(3, n, n)


def encoder(**settings: Any) -> Case:
    return Case(lambda m, x: m.e(x), e=nn.TransformerEncoderLayer(10, 2, 16, batch_first=True, **settings))


def autocast(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result: Tensor = m.inner(x)
    return result.float()


def with_grad(m: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        result: Tensor = m.inner(x)
    return result


def augmented(m: Any, x: Tensor) -> Tensor:
    y = x * 1
    y **= 2
    y += x
    y /= 3
    return y


def overwritten(name: str, *arguments: Any) -> Case:
    """A method that overwrites what it is called on: multiply, itself, add."""
    return Case(lambda m, x: getattr(x * 1, name)(*arguments) + 0)


def activated(name: str) -> Case:
    """A function that overwrites its argument, whose result nobody takes."""

    def body(m: Any, x: Tensor) -> Tensor:
        y = x * 1
        getattr(functional, name)(y, inplace=True)
        return y + 1

    return Case(body)


CHAIN: Final = ((10, 100), (100, 5), (5, 50))
META: Final[dict[str, tuple[Case, int, int]]] = {
    # The 2-norm: 2 * 120, a root per row; then a division per element.
    "norm_method": (Case(lambda m, x: x / x.norm(dim=-1, keepdim=True)), 0, 252 + 120),
    "norm_one": (Case(lambda m, x: torch.norm(x, p=1, dim=-1)), 0, 240),
    "norm_of_all": (Case(lambda m, x: torch.norm(x)), 0, 241),
    "linalg_norm": (Case(lambda m, x: torch.linalg.norm(x, dim=-1)), 0, 252),
    "linalg_vector_norm": (Case(lambda m, x: torch.linalg.vector_norm(x, 3, -1)), 0, 360 + 12),
    "linalg_matrix_norm": (Case(lambda m, x: torch.linalg.matrix_norm(x)), 0, 240 + 3),
    # The norm, a maximum per row, a division.
    "normalize": (Case(lambda m, x: functional.normalize(x, dim=-1)), 0, 252 + 12 + 120),
    "cosine": (Case(lambda m, x: functional.cosine_similarity(x, x, dim=-1)), 0, 6 * 120 + 6 * 12),
    "pairwise": (Case(lambda m, x: functional.pairwise_distance(x, x)), 0, 2 * 120 + 252),
    # 3 batches of 4 x 4 pairs of 10: subtract, square, add, and a root per pair.
    "cdist": (Case(lambda m, x: torch.cdist(x, x)), 0, 3 * 480 + 48),
    "cdist_one": (Case(lambda m, x: torch.cdist(x, x, p=1)), 0, 3 * 480),
    # 30 x 30 pairs, which torch takes through a product: the same work.
    "cdist_many": (Case(lambda m, x: torch.cdist(x.new_empty(30, 10), x.new_empty(30, 10))), 0, 900 * 31),
    "pdist": (Case(lambda m, x: functional.pdist(x[0])), 0, 3 * 60 + 6),
    # The norm of a difference of 120.
    "dist": (Case(lambda m, x: torch.dist(x, x * 1).view(1)), 0, 120 + 120 + 241),
    "polar": (Case(lambda m, x: torch.view_as_real(torch.polar(x, x))), 0, 4 * 120),
    "complex_abs": (Case(lambda m, x: torch.complex(x, x).abs()), 0, 4 * 120),
    # v (6, 4, 3), g (6, 1, 1): 3 * 72 + 2 * 6. The convolution: 3 * 6 * 8 outputs of 4 * 3 taps.
    "weight_norm": (
        Case(lambda m, x: m.c(x), c=nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 3))),
        2 * 144 * 12, 3 * 72 + 2 * 6,
    ),
    # Einsum with parameters, wherever they stand: 2 * 12 rows * 10 * 6.
    "einsum_last": (Case(lambda m, x: torch.einsum("bsd,dk->bsk", x, m.w), w=(10, 6)), 1440, 0),
    "einsum_first": (Case(lambda m, x: torch.einsum("dk,bsd->bsk", m.w, x), w=(10, 6)), 1440, 0),
    "einsum_three": (
        # From the left, which is the cheapest order too, so that a package that looks for it takes no other.
        Case(lambda m, x: torch.einsum("bsd,dk,kl->bsl", x, m.w, m.v), w=(10, 3), v=(3, 5)),
        2 * 12 * 10 * 3 + 2 * 12 * 3 * 5, 0,
    ),
    "einsum_only": (Case(lambda m, x: torch.einsum("dk,kl->dl", m.w, m.v), w=(10, 6), v=(6, 5)), 2 * 10 * 6 * 5, 0),
    "einsum_lists": (Case(lambda m, x: torch.einsum(x, [0, 1, 2], m.w, [2, 3], [0, 1, 3]), w=(10, 6)), 1440, 0),
    "einsum_dots": (Case(lambda m, x: torch.einsum(x, [..., 2], m.w, [2, 3], [..., 3]), w=(10, 6)), 1440, 0),
    # x W y: 12 rows, 6 outputs, (10 * 10 + 10) multiply-accumulates each.
    "bilinear": (Case(lambda m, x: m.b(x, x), b=nn.Bilinear(10, 10, 6)), 2 * 12 * 6 * 110, 0),
    # 4^2 per right-hand side; 3 * 10 of them.
    "triangular": (Case(lambda m, x: torch.linalg.solve_triangular(square(x), x, upper=False)), 0, 16 * 30),
    "triangular_right": (
        Case(lambda m, x: torch.linalg.solve_triangular(square(x, 10), x, upper=True, left=False)), 0, 100 * 12,
    ),
    "triangular_unit": (
        Case(lambda m, x: torch.linalg.solve_triangular(square(x), x, upper=True, unitriangular=True)), 0, 12 * 30,
    ),
    # LU of 4: divisions 3 + 2 + 1, multiplications and subtractions 2 * (9 + 4 + 1): 34. Two sweeps: 16 + 12.
    "solve": (Case(lambda m, x: torch.linalg.solve(square(x), x)), 0, 3 * 34 + 28 * 30),
    # 36 numbers of columns are added into 16 cells.
    "fold": (Case(lambda m, x: functional.fold(x.new_empty(1, 4, 9), (4, 4), 2)), 0, 36),
    # The first two first: 10*100*5 + 10*5*50; the other way it would be 100*5*50 + 10*100*50.
    "multi_dot": (Case(lambda m, x: torch.linalg.multi_dot([x.new_empty(*s) for s in CHAIN])), 2 * 7500, 0),
    # A row first: 3*4 + 4*5.
    "multi_dot_of_a_vector": (
        Case(lambda m, x: torch.linalg.multi_dot([x.new_empty(3), x.new_empty(3, 4), x.new_empty(4, 5)])), 2 * 32, 0,
    ),
    # The square, its square, and once more by the matrix: three products of three matrices.
    "matrix_power": (Case(lambda m, x: torch.linalg.matrix_power(square(x), 5)), 3 * 3 * 2 * 4**3, 0),
    "inverse": (Case(lambda m, x: torch.linalg.inv(square(x))), 0, 3 * (34 + 28 * 4)),
    "lu_factor": (Case(lambda m, x: torch.linalg.lu_factor(square(x))[0]), 0, 3 * 34),
    # And the product of a diagonal of 4.
    "det": (Case(lambda m, x: torch.linalg.det(square(x))), 0, 3 * (34 + 3)),
    # Roots 4, divisions 3 + 2 + 1, multiplications and subtractions of the lower triangles 2 * (6 + 3 + 1).
    "cholesky": (Case(lambda m, x: torch.linalg.cholesky(square(x))), 0, 3 * (4 + 6 + 20)),
    # 12 transforms of 10 = 5 * 10 * 4 each; of real numbers half.
    "fft": (Case(lambda m, x: torch.fft.ifft(torch.complex(x, x)).real), 0, 12 * 200),
    "rfft": (Case(lambda m, x: torch.fft.rfft(x).real), 0, 12 * 100),
    "rfft_longer": (Case(lambda m, x: torch.fft.rfft(x, 16).real), 0, 12 * 5 * 16 * 4 // 2),
    "irfft": (Case(lambda m, x: torch.fft.irfft(torch.complex(x, x), 16)), 0, 12 * 5 * 16 * 4 // 2),
    # -1 keeps the 4, the 10 become 8: half of 5 * 32 * (2 + 3), three times.
    "rfft_kept": (Case(lambda m, x: torch.fft.rfft2(x, s=(-1, 8)).real), 0, 3 * 400),
    # Over 4 and 10: 5 * 40 * (2 + 4), three times, of real numbers.
    "fftn": (Case(lambda m, x: torch.fft.fftn(x, dim=(1, 2)).real), 0, 3 * 1200 // 2),
    # 4 signals of 10 in 4 frames of 4, by hops of 2: 5 * 4 * 2 / 2 each, and a window of 4.
    "stft": (
        Case(lambda m, x: torch.stft(x[0], 4, 2, window=x.new_empty(4), center=False, return_complex=True).real),
        0, 16 * (20 + 4),
    ),
    "fftshift": (Case(lambda m, x: torch.fft.fftshift(x)), 0, 0),
    # LSTM, two layers, batch 3, 4 steps: 4 * 7 rows of weights on 10 + 7, then on 7 + 7; 13 per row and unit.
    "lstm": (recurrent(nn.LSTM(10, 7, 2, batch_first=True)), 2 * 12 * 28 * (17 + 14), 13 * 12 * 7 * 2),
    # Both directions: the second layer reads both.
    "lstm_both": (
        recurrent(nn.LSTM(10, 7, 2, bidirectional=True)), 2 * 12 * 28 * 2 * (17 + 21), 13 * 12 * 7 * 4,
    ),
    # A projection from 7 to 5: the state that comes back is 5 wide.
    "lstm_projected": (recurrent(nn.LSTM(10, 7, proj_size=5)), 2 * 12 * (28 * 15 + 5 * 7), 13 * 12 * 7),
    "lstm_plain": (recurrent(nn.LSTM(10, 7, bias=False)), 2 * 12 * 28 * 17, 13 * 12 * 7),
    "gru": (recurrent(nn.GRU(10, 7, 2)), 2 * 12 * 21 * (17 + 14), 11 * 12 * 7 * 2),
    "rnn": (recurrent(nn.RNN(10, 7, nonlinearity="relu")), 2 * 12 * 7 * 17, 2 * 12 * 7),
    # Cells: 4 rows; then a sum of 4 * 7.
    "lstm_cell": (cell(nn.LSTMCell(10, 7), 1), 2 * 4 * 28 * 17, 13 * 4 * 7),
    "gru_cell": (cell(nn.GRUCell(10, 7)), 2 * 4 * 21 * 17, 11 * 28 + 28),
    "rnn_cell": (cell(nn.RNNCell(10, 7)), 2 * 4 * 7 * 17, 2 * 28 + 28),
    # 2 * 5 * 3 * 4 outputs of 4 taps (7), of one, of 16 (31).
    "grid": (Case(picture("bilinear")), 0, 7 * 120),
    "grid_nearest": (Case(picture("nearest")), 0, 0),
    "grid_bicubic": (Case(picture("bicubic")), 0, 31 * 120),
    "grid_volume": (
        Case(lambda m, x: functional.grid_sample(
            x.new_empty(2, 5, 6, 7, 3), x.new_empty(2, 3, 4, 2, 3), align_corners=False
        )), 0, 15 * 240,
    ),
    # 2 * 4 * 5 positions of three numbers times a matrix of 3 x 2.
    "affine_grid": (
        Case(lambda m, x: functional.affine_grid(x.new_empty(2, 2, 3), [2, 3, 4, 5], align_corners=False)),
        2 * 40 * 3 * 2, 0,
    ),
    # 120 values in 10 boundaries: 4 comparisons each.
    "bucketize": (Case(lambda m, x: torch.bucketize(x, x.new_empty(10))), 0, 480),
    "searchsorted": (Case(lambda m, x: torch.searchsorted(x.new_empty(3, 4, 7), x)), 0, 360),
    # 9 differences in each of 12 rows, then 8.
    "differences": (Case(lambda m, x: x.diff(n=2)), 0, 12 * 9 + 12 * 8),
    "imaginary": (Case(lambda m, x: (x * 1j).imag), 0, 2 * 120),
    "outer_complex": (
        Case(lambda m, x: torch.outer(*2 * [torch.complex(x[0, 0], x[0, 0])]).real), 0, 6 * 100,
    ),
    # Stored statistics: subtract, normalise, scale, shift; 2 for each of 3 * 4 rows.
    "instance_norm_stored": (
        Case(lambda m, x: m.n(x), n=nn.InstanceNorm1d(4, affine=True, track_running_stats=True)), 0, 4 * 120 + 2 * 12,
    ),
    # 2 x 10 indices of a source of 4 x 10.
    "scatter_add": (Case(lambda m, x: x[0].scatter_add(0, x.new_zeros(2, 10, dtype=torch.long), x[1])), 0, 20),
    # 5 rows of 4 x 10, each plus the same row of 10.
    "index_put": (
        Case(lambda m, x: x.index_put((x.new_zeros(5, dtype=torch.long),), x[0, 0], accumulate=True)), 0, 5 * 40,
    ),
    "index_add": (
        Case(lambda m, x: x.index_add(0, x.new_zeros(3, dtype=torch.long), x, alpha=2)), 0, 2 * 120,
    ),
    "put": (Case(lambda m, x: x.put(x.new_zeros(7, dtype=torch.long), x[0, 0, :7], accumulate=True)), 0, 7),
    # The 40 numbers of the second are summed to 10; 12 rows times 10.
    "tensordot_of_one": (
        Case(lambda m, x: torch.tensordot(x[..., :1], x[0], dims=([2], [0]))), 2 * 12 * 10, 40,
    ),
    "bernoulli": (Case(lambda m, x: torch.bernoulli(x)), 0, 120),
    "normal": (Case(lambda m, x: torch.normal(x, x)), 0, 240),
    "nan_to_num": (Case(lambda m, x: torch.nan_to_num(x)), 0, 360),
    # 3 channels, 4 and 10 into 3 bins: [0,2) [1,3) [2,4) and [0,4) [3,7) [6,10): 6 by 12 taps.
    "adaptive_max": (Case(lambda m, x: functional.adaptive_max_pool2d(x, 3)), 0, 3 * 6 * 12),
    "all_true": (Case(lambda m, x: torch._is_all_true(x > 0)), 0, 120),
    # Subtract, normalise, scale: 3 * 120 and 2 per channel; the weight's own multiplication.
    "batch_norm_computed": (
        Case(
            lambda m, x: functional.batch_norm(x, m.n.running_mean, m.n.running_var, m.w * 2),
            n=nn.BatchNorm1d(4, affine=False), w=(4,),
        ), 0, 4 + 360 + 8,
    ),
    "batch_norm_plain": (Case(lambda m, x: m.n(x), n=nn.BatchNorm1d(4, affine=False)), 0, 240 + 8),
    # A scale that is not called weight: 6 * 120, 2 per row.
    "layer_norm_gamma": (Case(lambda m, x: functional.layer_norm(x, (10,), m.gamma), gamma=(10,)), 0, 720 + 24),
    # In place, on meta: vector FLOPs per element as for what is not in place.
    **{
        f"inplace_{layer.__name__}": (
            Case(lambda m, x: m.seq(x), seq=nn.Sequential(nn.Linear(10, 6), layer(inplace=True))), 1440, each * 72,
        )
        for layer, each in (
            (nn.SiLU, 2), (nn.ReLU, 1), (nn.Hardswish, 4), (nn.ReLU6, 1), (nn.Hardsigmoid, 3), (nn.Mish, 6),
            (nn.ELU, 4), (nn.LeakyReLU, 2), (nn.Hardtanh, 1), (nn.CELU, 5), (nn.SELU, 5), (nn.RReLU, 2),
        )
    },
    "inplace_silu_function": (activated("silu"), 0, (1 + 2 + 1) * 120),
    "inplace_elu_function": (activated("elu"), 0, (1 + 4 + 1) * 120),
    "sigmoid_": (overwritten("sigmoid_"), 0, 360),
    "pow_": (overwritten("pow_", 2), 0, 360),
    "mul_": (overwritten("mul_", 2), 0, 360),
    "clamp_": (overwritten("clamp_", 0, 1), 0, 360),
    "augmented": (Case(augmented), 0, 480),
    # Regions of an export: the layer inside is where it is.
    "autocast": (Case(autocast, inner=nn.Linear(10, 6)), 1440, 0),
    "with_grad": (Case(with_grad, inner=nn.Sequential(nn.Linear(10, 6), nn.GELU())), 1440, 5 * 72),
}  # fmt: skip

# As torch.nn.TransformerEncoderLayer, operator by operator: four projections 2 * 12 * 10 * 10 * 4, the MLP twice
# 2 * 12 * 10 * 16, attention 2 * 3 * 2 * 4 * 4 * (5 + 5); per score 6, two norms of 7 and 2 per row, two sums, ReLU.
_LAYER: Final = 9600 + 7680 + 1920
_VECTOR: Final = 6 * 96 + 2 * (840 + 24) + 2 * 120
CPU: Final[dict[str, tuple[Case, int, int]]] = {
    "encoder": (encoder(), _LAYER, _VECTOR + 192),
    "encoder_gelu_first": (encoder(activation="gelu", norm_first=True), _LAYER, _VECTOR + 5 * 192),
    # Weights come back: the query is scaled (120), softmax 5 per score, the mean over heads 1 per score.
    "attention": (
        Case(lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(10, 2, batch_first=True)), 9600 + 1920, 120 + 6 * 96,
    ),
    "lstm": (recurrent(nn.LSTM(10, 7)), 2 * 12 * 28 * 17, 13 * 12 * 7),
    "gru": (recurrent(nn.GRU(10, 7)), 2 * 12 * 21 * 17, 11 * 12 * 7),
    "silu": (Case(lambda m, x: functional.silu(x * 1, inplace=True)), 0, 360),
    "autocast": (Case(autocast, inner=nn.Linear(10, 6)), 1440, 0),
}  # fmt: skip

UNKNOWN_TO_TORCH: Final = ("bilinear", "affine_grid")


def by_case(graph: Graph) -> Found:
    work = cost_graph(graph)
    flops, vector, kinds = Counter[str](), Counter[str](), defaultdict[str, set[str]](set)
    for op, cost in zip(work.graph.ops, work.costs, strict=True):
        assert not isinstance(cost, UnknownCost), (op, cost)
        case = op.module.split(".")[1] if op.module else ""
        flops[case] += int(cost.flops)
        vector[case] += int(cost.vector)
        kinds[case] |= {kind_of(op.name)} if cost.flops else set()
    return {case: (flops[case], vector[case], kinds[case]) for case in (*flops, *vector)}


@cache
def traced(device: str) -> tuple[Found, Found]:
    """All cases of a device: as they run, and exported."""
    cases = META if device == "meta" else CPU
    module = Cases({name: case for name, (case, *_) in cases.items()}).to(device).eval()
    inputs = {"x": torch.empty(3, 4, 10, device=device)}
    with torch.no_grad():
        return by_case(trace_forward(module, inputs, "all cases", ()).graph), by_case(exported(module, inputs))


def exported(module: nn.Module, inputs: dict[str, Tensor]) -> Graph:
    return export_graph(ExportJob("all", "stage", ("once",), Wrapper(module), {"part": ""}, inputs)).graph


@pytest.mark.parametrize(("device", "name"), [("meta", name) for name in META] + [("cpu", name) for name in CPU])
def test_run_and_export_count_what_the_hand_does(device: str, name: str) -> None:
    _, flops, vector = (META if device == "meta" else CPU)[name]
    running, static = traced(device)
    assert running[name] == static[name]
    assert running[name][:2] == (flops, vector)


@pytest.mark.parametrize("name", [name for name in META if name not in UNKNOWN_TO_TORCH])
def test_torch_counts_the_same_flops(name: str) -> None:
    case, flops, _ = META[name]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        case.to("meta").eval()(torch.empty(3, 4, 10, device="meta"))
    assert counter.get_total_flops() == flops


class Mapped(nn.Module):
    """A product for every row of a batch, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(10, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Twice through torch.vmap."""
        mask: Tensor = torch.vmap(lambda i: i >= 2)(torch.arange(3, device=x.device))
        product: Tensor = torch.vmap(lambda row: row @ self.w)(x)
        return product, mask


def unknown(graph: Graph) -> Iterator[str]:
    work = cost_graph(graph)
    for op, cost in zip(work.graph.ops, work.costs, strict=True):
        if isinstance(cost, UnknownCost):
            yield op.name
        else:
            assert (cost.flops, cost.vector) == (0, 0), op


def test_what_is_mapped_over_a_batch_is_never_counted_without_it() -> None:
    module, inputs = Mapped().to("meta").eval(), {"x": torch.empty(3, 4, 10, device="meta")}
    assert set(unknown(exported(module, inputs))) == {"vmap"}
    assert list(unknown(trace_forward(module, inputs, "mapped", ()).graph)) == ["vmap"]  # the mask is known


def test_what_a_mapped_function_closes_over_is_no_difference() -> None:
    """A trace does not see the weight that the function reads, so what the module reads is unknown."""
    module = Mapped().eval()
    found = costproof.count(module, torch.randn(3, 4, 10))
    assert found.verdict == "incomplete"
    assert found.capture.ledger("dynamic").stage_total("forward", "weight_read_bytes") is None


class Unmapped(nn.Module):
    """A mask that nothing of the batch decides, and one of integers that are among others."""

    def forward(self, x: Tensor) -> Tensor:
        """Through torch.vmap once."""
        ids = torch.arange(3, device=x.device)
        everywhere = torch.ones((), dtype=torch.bool, device=x.device)
        mask: Tensor = torch.vmap(lambda i: everywhere)(ids)
        return x.where(mask & torch.isin(ids, ids.new_zeros(5)), 0)


def test_a_mask_that_the_batch_does_not_decide_is_repeated_and_a_search_for_integers_is_no_work() -> None:
    module, inputs = Unmapped().eval(), {"x": torch.empty(2, 3, device="meta")}
    assert not list(unknown(exported(module, inputs)))
    assert not list(unknown(trace_forward(module, inputs, "unmapped", ()).graph))


def test_a_search_for_numbers_is_unknown() -> None:
    class Search(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.isin(x, x)

    assert list(unknown(exported(Search(), {"x": torch.empty(2, 3, device="meta")}))) == ["aten.isin.Tensor_Tensor"]


def test_packed_sequences_run_every_row() -> None:
    """Lengths 4, 3, 2: 9 rows of an LSTM 10 -> 7."""

    def body(m: Any, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 3, 2]), batch_first=True)
        result: Tensor = m.layer(packed)[0].data
        return result

    module = Cases({"packed": Case(body, layer=nn.LSTM(10, 7))}).eval()
    with torch.no_grad():
        graph = trace_forward(module, {"x": torch.randn(3, 4, 10)}, "packed", ()).graph
    assert by_case(graph)["packed"][:2] == (2 * 9 * 28 * 17, 13 * 9 * 7)


def test_torchs_functions_are_as_they_were() -> None:
    from torchlens.backends.torch.wrappers import unwrap_torch, wrap_torch

    module, x = Cases({"silu": activated("silu")}).to("meta").eval(), torch.empty(3, 4, 10, device="meta")
    plain: Any = functional.silu
    trace_forward(module, {"x": x}, "once", ())
    assert functional.silu is plain
    wrap_torch()
    try:
        wrapped: Any = functional.silu
        held = [cell.cell_contents for cell in wrapped.__closure__]
        trace_forward(module, {"x": x}, "once more", ())
        assert functional.silu is wrapped is not plain
        assert [cell.cell_contents for cell in wrapped.__closure__] == held
    finally:
        unwrap_torch()
