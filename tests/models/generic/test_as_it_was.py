"""A count leaves the module, the modes, the random numbers and the settings as they were: compared bit for bit."""

from __future__ import annotations

import builtins
import copy
import ctypes
import decimal
import gc
import logging
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import costproof
import costproof.run.capture  # it imports sympy, which filters warnings
from costproof import saved_settings
from costproof.ledger.errors import BadInput, CostproofError
from costproof.patches.patch import patched
from costproof.patches.tensor import STACK_INDEX_ROWS
from costproof.process_settings import ProcessSetting
from costproof.snapshots import module_state
from costproof.snapshots.module_snapshot import Changed
from costproof.tracers import sources
from tests.support.pools import Here

FLOPS = 2 * 3 * 4 * 4
"""Three rows through a square matrix of 4."""


class Writes(nn.Module):
    """[3, 4] -> [3, 4]; does something to a module on the way."""

    def __init__(self, write: Callable[[Any], object] = lambda module: None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("once", torch.ones(4), persistent=False)
        self.write = write
        self.held: list[Any] = [1, torch.ones(2)]
        self.number = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One product."""
        with torch.no_grad():
            self.write(self)
        result: torch.Tensor = self.inner(x)
        return result


def numbers(tensor: torch.Tensor) -> bytes:
    """The bits of a tensor on the CPU, by NumPy."""
    return tensor.detach().contiguous().numpy().tobytes()


def state(module: nn.Module) -> dict[str, Any]:
    """Everything about a module that can be compared by value; its own code, and none of costproof's."""
    found: dict[str, Any] = {}
    for name, t in (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)):
        grad = t.grad if t.is_leaf else None
        found[name] = (
            *(id(t), type(t), t.dtype, t.device, tuple(t.shape), t.stride(), t.storage_offset(), t.data_ptr()),
            *(t._version, t.requires_grad, t.is_leaf, dict(vars(t)), numbers(t)),
            *(id(grad), None if grad is None else numbers(grad)),
        )
    for name, part in module.named_modules(remove_duplicate=False):
        for key, value in vars(part).items():
            inside = list(value.items()) if isinstance(value, dict) else list(value) if isinstance(value, list) else []
            found[f"{name}:{key}"] = id(value), type(part), [id(v) if not isinstance(v, tuple) else v for v in inside]
    return found


def process() -> list[Any]:
    """Settings, random numbers and modes of the process."""
    functional: Any = nn.functional
    return [
        *(torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        *(random.getstate(), str(np.random.get_state(legacy=False)), numbers(torch.get_rng_state())),
        *(torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled(), torch.get_num_threads()),
        *(
            gc.isenabled(),
            sys.getrecursionlimit(),
            list(warnings.filters),
            os.environ.get("TRANSFORMERS_DISABLE_TORCH_CHECK"),
        ),
        *(
            functional.linear,
            torch.Tensor.__add__,
            torch.tensor,
            nn.Module.__call__,
            nn.Linear.forward,
            vars(Writes).copy(),
        ),
        *(torch.UntypedStorage.resize_, torch.Tensor.numpy, torch.is_autocast_enabled("cpu")),
        *(torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
    ]


def trained(write: Callable[[Any], object] = lambda module: None) -> Writes:
    """A module with gradients and statistics."""
    module = Writes(write)
    torch.sum(module.norm(module.inner(torch.randn(3, 4)))).backward()  # type: ignore[no-untyped-call]
    return module


class Disturbs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers with something else when state is saved or put back."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.change = change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        copies = func._schema.name in ("aten::detach", "aten::clone", "aten::copy_", "aten::alias")
        return self.change(result) if copies and isinstance(result, torch.Tensor) else result


class DisturbsFunctions(TorchFunctionMode):
    """The same for functions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        copies = getattr(func, "__name__", "") in ("detach", "clone", "copy_", "empty_like")
        return result * 2 if copies else result


def refuses(tensor: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no copies")


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "fake": FakeTensorMode,
    "fake that takes real ones": lambda: FakeTensorMode(allow_non_fake_inputs=True),
    "zeros": lambda: Disturbs(torch.zeros_like),
    "other dtype": lambda: Disturbs(torch.Tensor.half),
    "other memory": lambda: Disturbs(lambda t: t + 0),
    "other device": lambda: Disturbs(lambda t: t.to("meta")),
    "raises": lambda: Disturbs(refuses),
    "functions": DisturbsFunctions,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default device": lambda: torch.device("meta"),
    "anomaly": torch.autograd.detect_anomaly,
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("mode", MODES)
def test_under_a_mode_of_the_caller(mode: str) -> None:
    module, x = trained(), torch.randn(3, 4)
    before, around = state(module), process()
    with MODES[mode]():
        depth = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
        report = costproof.count(module, x)
        assert (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()) == depth
    assert (report.verdict, report.capture.ledger("dynamic").total("flops")) == ("exact", FLOPS)
    assert state(module) == before
    assert process() == around


def test_modes_are_back_in_their_order() -> None:
    def stacks() -> list[Any]:
        operators = [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]
        return [*operators, *torch.overrides._get_current_function_mode_stack()]  # type: ignore[no-untyped-call]

    with Disturbs(torch.clone), DisturbsFunctions(), torch.device("cpu"), Disturbs(torch.clone), DisturbsFunctions():
        before = stacks()
        assert len(before) == 5
        with pytest.raises(BadInput):
            costproof.count(len, 3)
        costproof.count(nn.Linear(4, 4), torch.ones(3, 4))
        assert stacks() == before


def test_fake_tensors_are_counted_by_shapes() -> None:
    with FakeTensorMode():
        fake, x = nn.Linear(4, 4), torch.randn(3, 4)
        inside = costproof.count(fake, x)
    for report in (inside, costproof.count(fake, x), costproof.count(nn.Linear(4, 4), x)):
        assert (report.verdict, report.capture.ledger("dynamic").total("flops")) == ("exact", FLOPS)
    assert fake.weight.device.type == "cpu"


def test_tensors_of_a_transform_are_refused_and_others_counted_outside_of_it() -> None:
    module, found = nn.Linear(4, 4), []

    def counted(x: torch.Tensor) -> torch.Tensor:
        found.append(costproof.count(module, torch.ones(3, 4)).verdict)
        with pytest.raises(BadInput, match="belongs to a transform"):
            costproof.count(module, x)
        return x + 1

    before = state(module)
    assert torch.equal(torch.vmap(counted)(torch.zeros(2, 4)), torch.ones(2, 4))
    assert found == ["exact"]
    assert state(module) == before


GIVEN: list[Writes] = []
"""The module that was given, which a forward finds beside its copy."""


def outside(write: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda copy: write(GIVEN[0])


def in_a_thread(module: Any) -> None:
    thread = threading.Thread(target=lambda: GIVEN[0].inner.weight.data.zero_())
    thread.start()
    thread.join()


def past_torch(module: Any) -> None:
    ctypes.memset(GIVEN[0].inner.weight.data_ptr(), 1, 8)


WRITES: dict[str, Callable[[Any], object]] = {
    "attribute": outside(lambda m: setattr(m, "number", 2)),
    "list": outside(lambda m: m.held.append(2)),
    "tensor in a list": outside(lambda m: m.held[1].add_(1)),
    "buffer": outside(lambda m: m.once.add_(1)),
    "persistence": outside(lambda m: m._non_persistent_buffers_set.clear()),
    "child": outside(lambda m: setattr(m, "inner", nn.Linear(4, 4))),
    "hook": outside(lambda m: m.inner.register_forward_hook(lambda *_: None)),
    "hook of a gradient": outside(lambda m: m.inner.weight.register_hook(lambda g: g)),
    "dtype": outside(lambda m: m.double()),
    "device": outside(lambda m: m.to("meta")),
    "tied": outside(lambda m: setattr(m.inner, "bias", nn.Parameter(m.inner.weight[0]))),
    "class": outside(lambda m: setattr(m, "__class__", type("Other", (Writes,), {}))),
    "class of a parameter": outside(lambda m: setattr(m.inner.weight, "__class__", type("P", (nn.Parameter,), {}))),
    "gradients": outside(lambda m: m.zero_grad()),
    "bits of a gradient": outside(lambda m: m.inner.weight.grad.zero_()),
    "thread": in_a_thread,
    "past torch": past_torch,
    "storage": lambda m: m.inner.bias.untyped_storage().fill_(0),
    "layout": lambda m: m.inner.weight.data.t_(),
    "random numbers": lambda m: (torch.manual_seed(1), random.seed(1), np.random.seed(1)),
    "default dtype": lambda m: torch.set_default_dtype(torch.float64),
    "threads": lambda m: torch.set_num_threads(1),
    "algorithms": lambda m: torch.use_deterministic_algorithms(True),
    "warnings": lambda m: warnings.filterwarnings("error", message="never said"),
    "collection": lambda m: gc.disable(),
    "recursion": lambda m: sys.setrecursionlimit(4321),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_a_forward_does_is_undone(write: str) -> None:
    module, x = trained(WRITES[write]), torch.randn(3, 4)
    GIVEN[:] = [module]
    before, around, held = state(module), process(), numbers(module.held[1])
    costproof.count(module, x)
    assert state(module) == before
    assert process() == around
    assert numbers(module.held[1]) == held


def replace_indexing(module: object) -> None:
    """Index through a function in Python, and put torch's method back."""
    index = torch.Tensor.__getitem__
    torch.Tensor.__getitem__ = lambda self, key: index(self, key)  # type: ignore[method-assign]
    del torch.Tensor.__getitem__


@pytest.mark.parametrize("write", [lambda module: None, replace_indexing])
def test_tensors_are_no_sequences_to_c_code(write: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch) -> None:
    # CPython keeps a slot for `__getitem__` in Python; then torch asks a scalar tensor for its length. Both traces
    # and the export replace the method.
    monkeypatch.setattr(sources, "Pool", Here)
    scalar = torch.tensor(-12)
    costproof.count(Writes(write), torch.ones(3, 4))
    assert torch.tensor([scalar, scalar]).tolist() == [-12, -12]
    with patched(*STACK_INDEX_ROWS):
        assert torch.tensor([scalar]).tolist() == [-12]
        assert torch.ones(2, 3)[[(scalar + 13), scalar + 12], [0, 1]].tolist() == [1, 1]


LOGGER: Final = logging.getLogger(__name__)
UNTYPED: Final[Any] = torch


def settings() -> dict[str, Any]:
    """Settings of Python, the system, NumPy and torch that a forward may change."""
    umask = os.umask(0o22)
    os.umask(umask)
    return {
        "folder": (os.getcwd(), umask),
        "environment": os.environ.get("LEFT"),
        "path": (list(sys.path), list(sys.path_hooks), list(sys.meta_path), sys.modules["json"]),
        "functions": (os.replace, builtins.isinstance, torch.relu, nn.functional.linear, nn.Module.__call__),
        "hooks": [dict(held) for held in (module_hooks._global_forward_hooks, module_hooks._global_forward_pre_hooks)],
        "watching": (sys.getprofile(), sys.gettrace(), gc.get_threshold(), sys.getswitchinterval()),
        "signals": (signal.getsignal(signal.SIGUSR1), signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "system": (resource.getrlimit(resource.RLIMIT_CORE), os.sched_getaffinity(0)),
        "float32": (
            torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        ),
        "denormals": 5e-324 * 1.0,
        "printed": (torch._tensor_str.PRINT_OPTS.precision, np.get_printoptions()["precision"], np.geterr()),
        "autocast": torch.is_autocast_cache_enabled(),
        "numbers": (decimal.getcontext().prec, socket.getdefaulttimeout()),
        "decimal": [
            (id(each), str(each.flags), str(each.traps)) for each in (decimal.getcontext(), decimal.DefaultContext)
        ],
        "logging": (LOGGER.level, LOGGER.disabled, LOGGER.propagate, logging.raiseExceptions),
        "sums": (
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
            UNTYPED.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(), UNTYPED.backends.cuda.cudnn_sdp_enabled(),
        ),
        "torch": (
            torch.backends.mkldnn.deterministic, torch.backends.opt_einsum.strategy, torch.backends.quantized.engine,
            UNTYPED.utils.deterministic.fill_uninitialized_memory,
            torch.__future__.get_swap_module_params_on_conversion(),
            UNTYPED.multiprocessing.get_sharing_strategy(), torch.distributions.Distribution._validate_args,
        ),
        "interpreter": (
            threading.stack_size(), sys.getdlopenflags(), sys.get_coroutine_origin_tracking_depth(),
            *sys.get_asyncgen_hooks(), np.geterrcall(),
        ),
    }  # fmt: skip


def change_settings(module: object) -> None:
    """Change all of them."""
    os.chdir("/")
    os.umask(0o111)
    os.environ["LEFT"] = "1"
    sys.path.insert(0, "/left")
    sys.path_hooks.insert(0, sys.path_hooks[0])
    sys.meta_path.insert(0, sys.meta_path[0])
    sys.modules["json"] = sys
    os.replace = print  # type: ignore[assignment]
    torch.relu = torch.neg
    nn.functional.linear = lambda x, w, b=None: x @ w.t()  # type: ignore[assignment]
    module_hooks.register_module_forward_hook(lambda *_: None)
    module_hooks.register_module_forward_pre_hook(lambda *_: None)
    gc.set_threshold(90_000)  # a small one takes seconds
    sys.setswitchinterval(1)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = False
    torch.set_flush_denormal(True)
    torch.set_printoptions(precision=1)  # type: ignore[no-untyped-call]
    np.set_printoptions(precision=1)
    np.seterr(all="raise")
    torch.set_autocast_cache_enabled(False)
    decimal.getcontext().prec = 3
    decimal.getcontext().traps[decimal.Inexact] = True
    decimal.setcontext(decimal.Context(prec=5, flags=[decimal.Rounded]))
    decimal.DefaultContext.traps[decimal.Overflow] = False
    LOGGER.setLevel(50)
    LOGGER.disabled, LOGGER.propagate, logging.raiseExceptions = True, False, False
    matmul: Any = torch.backends.cuda.matmul
    matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    torch.backends.cuda.enable_cudnn_sdp(False)
    UNTYPED.backends.mkldnn.set_flags(True, True)
    torch.backends.opt_einsum.strategy = "optimal"
    torch.backends.quantized.engine = torch.backends.quantized.supported_engines[0]
    UNTYPED.utils.deterministic.fill_uninitialized_memory = False
    torch.__future__.set_swap_module_params_on_conversion(True)
    UNTYPED.multiprocessing.set_sharing_strategy("file_system")
    torch.distributions.Distribution.set_default_validate_args(False)
    threading.stack_size(2**20)
    sys.setdlopenflags(sys.getdlopenflags() | os.RTLD_GLOBAL)
    sys.set_coroutine_origin_tracking_depth(3)
    sys.set_asyncgen_hooks(print, print)
    np.seterrcall(lambda *_: None)
    socket.setdefaulttimeout(1)
    sys.setprofile(lambda *_: None)


def test_settings_that_a_forward_changes_are_put_back() -> None:
    limit = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (min(1024, limit[1]) if limit[1] >= 0 else 1024, limit[1]))
    before = settings()
    try:
        costproof.count(trained(change_settings), torch.randn(3, 4))
        assert settings() == before
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limit)


class Counts(nn.Linear):
    """A layer that keeps notes on its class."""

    calls = 0
    shapes: list[Any] = []  # noqa: RUF012  # shared by all of them, as the notes of such code are
    seen = torch.zeros(1)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        kind: Any = type(self)
        kind.calls += 1
        kind.shapes.append(input.shape)
        kind.last = "forward"
        kind.seen.add_(1)
        return super().forward(input)


def test_attributes_of_the_classes_of_a_module_are_as_they_were() -> None:
    costproof.count(nn.Sequential(Counts(4, 4)), torch.randn(3, 4))
    assert (Counts.calls, Counts.shapes, hasattr(Counts, "last"), Counts.seen.item()) == (0, [], False, 0)


class Kept(type):
    """A metaclass that lets nothing be taken away."""

    def __delattr__(cls, name: str) -> None:
        raise TypeError(name)


class Marks(nn.Linear, metaclass=Kept):
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        type(self).mark = 1  # type: ignore[attr-defined]
        return super().forward(input)


def test_an_attribute_of_a_class_that_stays_is_named() -> None:
    with pytest.raises(CostproofError, match=r"Marks\.mark nothing -> 1"):
        costproof.count(Marks(4, 4), torch.randn(3, 4))
    type.__delattr__(Marks, "mark")


def test_a_setting_that_cannot_be_put_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(soft: int) -> None:
        raise OSError(soft)

    change = socket.setdefaulttimeout
    kept = ProcessSetting("the timeout of sockets", socket.getdefaulttimeout, refuses)
    monkeypatch.setattr(saved_settings, "process_settings", lambda: [kept])
    try:
        with pytest.raises(Changed, match="is not as it was") as changed:
            costproof.count(trained(lambda module: change(5)), torch.randn(3, 4))
    finally:
        change(None)
    assert changed.value.where == "the timeout of sockets None -> 5.0"


def test_what_cannot_be_undone_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_state, "MOST_KEPT", 0)
    monkeypatch.setattr("costproof.snapshots.module_state.MOST_KEPT", 0)
    module = trained(in_a_thread)
    GIVEN[:] = [module]
    with pytest.raises(Changed, match="module is not as it was") as changed:
        costproof.count(module, torch.randn(3, 4))
    assert (changed.value.where, changed.value.exit_code) == ("inner.weight: bits, in 1 of 1 MiB", 3)
    shared = trained(lambda m: m.inner.weight.share_memory_())
    weight = numbers(shared.inner.weight)
    with pytest.raises(Changed, match=r"inner\.weight: shared False -> True; inner\.weight: memory at another address"):
        costproof.count(shared, torch.randn(3, 4))
    assert numbers(shared.inner.weight) == weight


def test_a_large_module_is_as_it_was_where_the_dispatcher_sees_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costproof.snapshots.module_state.MOST_KEPT", 0)
    module = trained(lambda m: (m.inner.weight.mul_(2), m.inner.weight.untyped_storage().fill_(0)))
    before = state(module)
    costproof.count(module, torch.randn(3, 4))
    assert state(module) == before


class Odd(nn.Module):
    """[3, 4] -> [3, 4]; with tensors of many kinds, some of which it writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.randn(32))
        self.view = nn.Parameter(self.flat.data[4:20].view(4, 4).t())
        self.sparse = nn.Parameter(torch.eye(4).to_sparse())
        self.rows = nn.Parameter(torch.eye(4).to_sparse_csr(), requires_grad=False)
        self.pair = nn.Parameter(TwoTensor(torch.ones(4), torch.zeros(4)))  # type: ignore[no-untyped-call]
        self.here, self.empty = nn.Parameter(torch.ones(2, device="meta")), nn.Parameter(torch.empty(0, 3))
        self.leafless = self.flat * 2
        self.register_buffer("wide", torch.ones(1).expand(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One product with what was written."""
        with torch.no_grad():
            self.view.add_(1)
            self.pair.add_(1)
            self.sparse.mul_(2)
        return x @ self.view


@pytest.mark.filterwarnings("ignore:Sparse")
def test_tensors_of_many_kinds() -> None:
    module = Odd()

    def values() -> list[Any]:
        plain: Any = (module.flat, module.view, module.leafless, module.wide, module.empty)
        inside = (module.sparse.detach()._values(), module.rows.values(), module.pair.a, module.pair.b)  # type: ignore[attr-defined]
        kept: list[Any] = [numbers(t) for t in (*plain, *inside)]
        return [*kept, *((id(t), type(t), t._version) for t in (*plain, module.sparse, module.rows, module.pair))]

    before = values()
    address, function = module.view.data_ptr(), module.leafless.grad_fn
    try:
        costproof.count(module, torch.randn(3, 4))
    except CostproofError as error:
        assert not isinstance(error, Changed)  # noqa: PT017
    assert values() == before
    assert module.view.data_ptr() == address == module.flat.data_ptr() + 16
    assert module.leafless.grad_fn is function


def test_casts_of_what_a_forward_wrote_are_not_kept() -> None:
    module, x = Writes(lambda m: m.inner.weight.zero_()), torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        expected = copy.deepcopy(module.inner)(x)
        costproof.count(module, x)
        assert torch.equal(module.inner(x), expected)
        torch.sum(module.inner(x)).backward()  # type: ignore[no-untyped-call]
    assert module.inner.weight.grad is not None


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers")
@pytest.mark.parametrize("moments", [8, pytest.param(100, marks=pytest.mark.thorough)])
def test_interrupts_at_random_moments(moments: int) -> None:
    module, x = trained(lambda m: m.inner.weight.mul_(2)), torch.randn(3, 4)
    costproof.count(module, x)
    began = time.monotonic()
    whole = costproof.count(module, x).capture.ledger("dynamic").nodes
    took, draw = time.monotonic() - began, random.Random(0)
    before, around, hit = state(module), process(), 0

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(moments):
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(took / 20, took * 0.7))
                costproof.count(module, x)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                hit += 1
            assert state(module) == before
            assert process() == around
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert hit
    assert costproof.count(module, x).capture.ledger("dynamic").nodes == whole


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers")
def test_a_timer_of_the_user_may_end_during_a_count() -> None:
    handler = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-3)
        costproof.count(nn.Linear(3, 4), torch.randn(2, 3))
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def test_what_the_user_replaces_between_two_counts_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(module: Any) -> None:
        raise KeyboardInterrupt

    def mine(*args: Any) -> None:
        """Stand in for a function of torch."""

    module, x = trained(ends), torch.randn(3, 4)
    places: tuple[tuple[Any, str], ...] = ((nn.utils.rnn, "pad_sequence"), (nn.Conv1d, "forward"), (torch, "atan"))
    for replaced in (False, True, False):
        with monkeypatch.context() as patch:
            for place, name in places if replaced else ():
                patch.setattr(place, name, mine)
            before = [getattr(place, name) for place, name in places]
            assert (before == [mine] * 3) == replaced
            with pytest.raises(KeyboardInterrupt):
                costproof.count(module, x)
            assert [getattr(place, name) for place, name in places] == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked")
def test_a_child_that_is_forked_while_another_thread_counts() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def waits(module: Any) -> None:
        module.inner.weight.mul_(2)
        if torch.nn.functional.linear is not plain:  # TorchLens has wrapped it
            inside.set()
            go_on.wait(60)

    functional: Any = nn.functional
    plain = functional.linear
    module, x = trained(waits), torch.randn(3, 4)
    before, around = state(module), process()
    del around[3]  # Python seeds its random numbers anew in a child
    thread = threading.Thread(target=lambda: costproof.count(module, x))
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(60)  # a child that hangs ends
        now = process()
        del now[3]
        module.write = lambda m: None
        counted = costproof.count(nn.Linear(4, 4), torch.randn(3, 4)).capture.ledger("static").total("flops")
        left = {name for name, held in state(module).items() if held != before.get(name)}
        os._exit(1 * (now != around) + 2 * (left != {":write"}) + 4 * (counted != FLOPS))
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    go_on.set()
    thread.join()
    assert ended == 0
    assert state(module) == before


def steps(module: nn.Module, x: torch.Tensor, go_on: Callable[[int], bool]) -> list[float]:
    """The losses of a training, from the same weights every time."""
    torch.manual_seed(1)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.constant_(part.weight, 0.1)
            nn.init.constant_(part.bias, 0.1)
    losses: list[float] = []
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    while go_on(len(losses)):
        optimizer.zero_grad()
        loss = module(x).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_two_threads_that_count_at_once_and_one_that_trains_another_model() -> None:
    module, other, x = trained(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(3, 4)
    done, losses, verdicts = threading.Event(), [], []
    before = state(module)
    beside = threading.Thread(target=lambda: losses.extend(steps(other, x, lambda _: not done.is_set())))
    beside.start()
    counts = [threading.Thread(target=lambda: verdicts.append(costproof.count(module, x).verdict)) for _ in range(2)]
    for thread in counts:
        thread.start()
    for thread in counts:
        thread.join()
    done.set()
    beside.join()
    assert verdicts == ["exact", "exact"]
    assert losses
    assert losses == steps(other, x, lambda number: number < len(losses))
    assert state(module) == before
