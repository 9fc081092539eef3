"""Foreign code in this process: whatever it does, a command ends with a code of its own and a clean stdout."""

from __future__ import annotations

import builtins
import decimal
import gc
import json
import locale
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costproof import foreign
from costproof.foreign import contained
from costproof.ledger.errors import BadInput, CostproofError
from costproof.opgraph.graph import Graph, OpCall
from costproof.opgraph.rules.files import rules_from
from costproof.opgraph.rules.registry import cost_of, transforms
from costproof.reports.report import Report
from tests.support.running import Result, costproof
from tests.support.toy import toy

FACTORIES = r"""
import builtins, json, os, pathlib, random, signal, subprocess, sys, time, torch
from torch import nn
linear = lambda: (nn.Linear(4, 4), torch.randn(2, 4))
def raises(): raise ValueError("\x1b[31mred\x1b[0m\n\n<script>")
def exits(): sys.exit(0)
def exits_7(): sys.exit(7)
def exits_at_once(): os._exit(9)
def executes(): os.execv("/bin/false", ["false"])
def interrupts(): raise KeyboardInterrupt
def closes_generator(): raise GeneratorExit
def stops(): raise StopIteration
def raises_own_kind(): raise type("Mine", (BaseException,), {})("mine")
def group(): raise BaseExceptionGroup("two", [SystemExit(0), KeyboardInterrupt()])
def recursion(): return recursion()
def memory(): return nn.Linear(4, 4), torch.empty(10**15)
def takes(a): return linear()
def none(): return None
def cls(): return nn.Linear
def three(): return nn.Linear(4, 4), torch.randn(2, 4), 1
def other_inputs(): return nn.Linear(4, 4), {"nope": torch.randn(2, 4)}
def text_inputs(): return nn.Linear(4, 4), "abc"
def generator(): yield nn.Linear(4, 4)
async def coroutine(): return nn.Linear(4, 4)
def example_raises():
    m = nn.Linear(4, 4); m.example_inputs = lambda: 1 / 0; return m
def example_exits():
    m = nn.Linear(4, 4); m.example_inputs = lambda: sys.exit(0); return m
def patches():
    torch.nn.functional.linear = lambda x, w, b=None: x
    torch.Tensor.shape = property(lambda s: (1,))
    return linear()
not_callable = 5
class Unsayable(Exception):
    def __str__(self): sys.exit(0)
def raises_unsayable(): raise Unsayable
def raises_half_a_character(): raise ValueError("\udc80")
def names_half_a_character():
    m = nn.Sequential(); m.add_module("\udc80", nn.Linear(4, 4)); return m, torch.ones(2, 4)
def exits_by_posix():
    import posix; posix._exit(9)
def no_instance(): builtins.isinstance = leave; return linear()
def traces(): sys.settrace(leave); return linear()
def hooks_of_all(): nn.modules.module.register_module_forward_hook(print); return linear()
def part_of_itself():
    m = nn.Sequential(nn.Linear(4, 4)); m[0].add_module("back", m); return m, torch.ones(2, 4)

def leave(*_, **__): sys.exit(0)
class Finder: find_spec = leave
def imports(): builtins.__import__ = leave; return linear()
def finders(): sys.meta_path.insert(0, Finder()); sys.meta_path = [Finder()]; return linear()
def path_hooks(): sys.path_hooks.insert(0, leave); sys.path_importer_cache.clear(); return linear()
def modules(): sys.modules["json"] = 5; sys.modules.pop("pathlib"); sys.modules = {}; return linear()
def functions():
    os.replace = os.getpid = os.dup2 = os.open = time.time = time.monotonic = lambda *_, **__: None
    json.dumps = json.JSONEncoder.encode = pathlib.Path.write_bytes = json.loads = leave
    made = linear()
    builtins.open = builtins.print = builtins.zip = builtins.map = builtins.any = leave
    return made
def system():
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard)); os.setpriority(os.PRIO_PROCESS, 0, 0)
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); signal.setitimer(signal.ITIMER_REAL, 60)
    return linear()
def more_of_the_interpreter():
    import decimal, gc, numpy, socket, tempfile
    decimal.getcontext().prec = 3; socket.setdefaulttimeout(1); tempfile.tempdir = "/"; sys.setswitchinterval(1)
    numpy.seterr(all="raise"); numpy.set_printoptions(precision=1); gc.callbacks.append(print)
    os.environ = None; sys.setprofile(lambda *_: None); sys.settrace(lambda *_: None); return linear()
def more_of_torch():
    torch.set_printoptions(precision=1); torch.backends.cudnn.allow_tf32 = False; torch.set_flush_denormal(True)
    torch.backends.cuda.matmul.allow_tf32 = True; torch.set_warn_always(True); return linear()

def forks():
    if os.fork() == 0:
        time.sleep(1); os._exit(0)
    return linear()
def forks_and_returns(): os.fork(); return linear()
def starts(): subprocess.Popen(["true"], start_new_session=True).wait(); return linear()
def prints():
    print('{"verdict":"exact"}'); os.write(1, b"raw on fd1\n"); sys.__stdout__.write("dunder\n")
    os.system("echo from a shell"); return linear()
def closes(): os.close(1); os.close(2); return linear()
def folder(): os.chdir("/"); os.umask(0o777); return linear()
def environment(): os.environ.clear(); os.environ["X"] = "1"; return linear()
def signals():
    signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN); return linear()
def interpreter():
    import gc, locale, logging, threading, warnings
    sys.path[:] = []; sys.path = ["/"]; sys.argv = ["x"]; sys.stdout = sys.stderr = None
    sys.excepthook = threading.excepthook = print
    sys.setrecursionlimit(500); gc.disable(); gc.set_threshold(1); logging.disable(50); logging.basicConfig(level=1)
    warnings.simplefilter("error"); random.seed(0); locale.setlocale(locale.LC_ALL, "C")
    sys.modules["costproof.ledger.errors"] = None
    return linear()
def torch_state():
    torch.set_default_dtype(torch.float64); torch.set_default_device("meta"); torch.set_num_threads(1)
    torch.set_grad_enabled(False); torch.use_deterministic_algorithms(True); torch.manual_seed(0)
    torch.set_float32_matmul_precision("medium")
    return nn.Linear(4, 4), torch.zeros(2, 4)
def lazy(): return nn.LazyLinear(4), torch.randn(2, 4)
def names():
    class E(nn.Module):
        def __init__(s):
            super().__init__()
            for n in ("<script>alert(1)</script>", "\x1b[31mx\x07|`*_", '"];evil[label="x', "\u202e"):
                s.add_module(n, nn.Linear(4, 4))
        def forward(s, x):
            for m in s.children(): x = m(x)
            return x
    return E(), torch.randn(2, 4)
"""
FAIL = {
    "raises": r"ValueError: \x1b[31mred\x1b[0m (factories.py:5)",
    "exits": "SystemExit: 0 (factories.py:6)",
    "exits_7": "SystemExit: 7 (factories.py:7)",
    "exits_at_once": "SystemExit: os._exit (factories.py:8)",
    "executes": "SystemExit: os.execv (factories.py:9)",
    "interrupts": "KeyboardInterrupt (factories.py:10)",
    "closes_generator": "GeneratorExit (factories.py:11)",
    "stops": "StopIteration (factories.py:12)",
    "raises_own_kind": "Mine: mine (factories.py:13)",
    "group": "BaseExceptionGroup: two (2 sub-exceptions) (factories.py:14)",
    "recursion": "RecursionError",
    "memory": "RuntimeError",
    "takes": "TypeError: takes() missing 1 required positional argument: 'a'",
    "none": "NoneType",
    "cls": "type",
    "three": "tuple",
    "other_inputs": "TypeError: missing a required argument: 'input'",
    "text_inputs": "TypeError: too many positional arguments",
    "generator": "generator",
    "coroutine": "coroutine",
    "example_raises": "ZeroDivisionError: division by zero (factories.py:26)",
    "example_exits": "SystemExit: 0 (factories.py:28)",
    "patches": "torch.nn.functional.linear, torch.Tensor.shape",
    "not_callable": "not_callable",
    "raises_unsayable": "Unsayable (factories.py:36)",
    "raises_half_a_character": r"ValueError: \udc80 (factories.py:37)",
    "names_half_a_character": r"'\udc80'",
    "exits_by_posix": "SystemExit: os._exit (factories.py:41)",
    "no_instance": "SystemExit: 0 (factories.py",
    "traces": "SystemExit: 0 (factories.py",
    "hooks_of_all": "the hooks of all modules",
    "part_of_itself": "a module is a part of itself\n  where:    0.back",
    "missing": "missing",
}
WORK = (
    "forks", "forks_and_returns", "starts", "prints", "closes", "folder", "environment", "signals", "interpreter",
    "torch_state", "lazy", "names", "imports", "finders", "path_hooks", "modules", "functions", "system",
    "more_of_the_interpreter", "more_of_torch",
)  # fmt: skip


def state() -> dict[str, Any]:
    """What foreign code must not change."""
    context = torch._GLOBAL_DEVICE_CONTEXT
    umask = os.umask(0o22)
    os.umask(umask)
    return {
        "folder": os.getcwd(),
        "umask": umask,
        "environment": {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
        "path": (id(sys.path), list(sys.path)),
        "argv": list(sys.argv),
        "signals": [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)],
        "streams": [id(getattr(sys, n)) for n in ("stdin", "stdout", "stderr", "__stdout__", "__stderr__")],
        "descriptors": [(os.fstat(n).st_dev, os.fstat(n).st_ino) for n in (0, 1, 2)],
        "hooks": (sys.excepthook, threading.excepthook),
        "limits": (sys.getrecursionlimit(), gc.isenabled(), gc.get_threshold()),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "warnings": list(warnings.filters),
        "locale": locale.setlocale(locale.LC_ALL),
        "errors": sys.modules["costproof.ledger.errors"],
        "modules": (id(sys.modules), sys.modules["json"], sys.modules["pathlib"]),
        "finders": (id(sys.meta_path), list(sys.meta_path), list(sys.path_hooks)),
        "functions": (
            builtins.__import__, builtins.isinstance, builtins.open, builtins.zip, builtins.map, os.replace, os.close,
            os._exit, time.time, json.dumps, json.JSONEncoder.encode, Path.write_bytes,
        ),
        "watching": (sys.gettrace(), sys.getprofile(), list(gc.callbacks), sys.getswitchinterval()),
        "system": (
            [resource.getrlimit(n) for n in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)],
            os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0),
            signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getitimer(signal.ITIMER_REAL),
        ),
        "numbers": (
            decimal.getcontext().prec, socket.getdefaulttimeout(), tempfile.tempdir, np.geterr(),
            np.get_printoptions()["precision"], 5e-324 * 1.0,
        ),
        "torch": (
            torch.get_default_dtype(), getattr(context, "device_context", None), torch.get_num_threads(),
            torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(), torch.nn.functional.linear, "shape" in vars(torch.Tensor),
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.is_warn_always_enabled(),
            torch._tensor_str.PRINT_OPTS.precision, len(torch.nn.modules.module._global_forward_hooks),
        ),
        "drawn": torch.get_rng_state().sum().item(),
    }  # fmt: skip


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Result]:
    """Run ``capture`` of a factory as far as the count, which is that of the toy."""
    (tmp_path / "factories.py").write_text(FACTORIES)
    monkeypatch.setattr("costproof.run.report.count_sources", lambda *_, **__: Report(toy()))

    def run(name: str) -> Result:
        kept = builtins.isinstance
        try:
            return costproof("capture", f"factories.py:{name}", "-o", "-", "--progress", "never", cwd=tmp_path)
        finally:  # without it pytest ends with exit code 0
            left, builtins.isinstance = builtins.isinstance, kept
            assert left is kept

    return run


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a coroutine that nobody awaits
@pytest.mark.parametrize("name", FAIL)
def test_a_factory_that_fails_is_bad_input_with_its_place(name: str, command: Callable[[str], Result]) -> None:
    before = state()
    result = command(name)
    assert (result.code, result.stdout) == (2, ""), result.stderr
    assert FAIL[name] in result.stderr
    assert "factories.py" in result.stderr or name.endswith(("_inputs", "_character", "_itself"))
    assert state() == before


@pytest.mark.parametrize("name", WORK)
def test_a_factory_that_does_more_leaves_stdout_and_the_process_alone(
    name: str, command: Callable[[str], Result], capfd: pytest.CaptureFixture[str]
) -> None:
    before = state()
    result = command(name)
    assert result.code == 0, result.stderr
    assert result.stdout.startswith("{")
    assert result.stdout.endswith("}\n")
    assert '{"verdict":"exact"}' not in result.stdout
    assert state() == before
    written = capfd.readouterr()
    assert written.out == ""
    if name == "prints":
        assert '{"verdict":"exact"}' in result.stderr
        assert "raw on fd1" in written.err
        assert "from a shell" in written.err


def test_a_signal_ends_a_factory_that_never_comes_back(tmp_path: Path, command: Callable[[str], Result]) -> None:
    """Also one that raises SystemExit, or an error, when it is interrupted."""
    for body in ("pass", "raise SystemExit(0)", "raise ValueError"):
        lines = ("def f():", "    import time", "    try: time.sleep(60)", f"    except KeyboardInterrupt: {body}")
        (tmp_path / "factories.py").write_text("\n".join((*lines, "    return f")))
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        result = command("f")
        timer.join()
        assert (result.code, result.stdout) == (3, "")
        assert "interrupted" in result.stderr


def test_a_signal_that_foreign_code_swallows_keeps_its_name() -> None:
    def swallowed() -> None:
        try:
            foreign.interrupt("SIGTERM")
        except KeyboardInterrupt as error:
            raise ValueError from error

    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), contained("code failed", "here"):
        swallowed()


HOSTILE = """
import os, pathlib, resource, signal, sys, torch
def make():
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__): stream.close()
    os.close(0); os.closerange(3, 65536)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, -1))
    os.environ = None
    os.replace = os.write = pathlib.Path.write_bytes = lambda *_: None
    sys.meta_path.clear()
    return torch.nn.Linear(4, 4), torch.ones(2, 4)
"""


def test_a_factory_that_closes_and_replaces_everything_leaves_a_whole_file(tmp_path: Path) -> None:
    """In a process with streams and pipes of its own."""
    (tmp_path / "own.py").write_text(HOSTILE)
    line = ("capture", "own.py:make", "-o", "own.json", "--sources", "dynamic", "--progress", "never")
    command = [sys.executable, "-m", "costproof", *line]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Wrote own.json\n")
    assert json.loads((tmp_path / "own.json").read_text())["target"]["name"] == "own:make"


def test_nothing_that_ends_the_program_leaves_a_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Not while an error is told, nor after the command."""
    monkeypatch.setattr("costproof.cli.main._fail", lambda *_: sys.exit(0))
    assert costproof("capture", "there_is_none", "-o", "x", cwd=tmp_path).code == 2
    said = capfd.readouterr().err
    assert "ends the program\n  where:    test_foreign.py:" in said
    assert "\n  got:      SystemExit: 0\n" in said
    monkeypatch.setattr("costproof.cli.main.skipped", lambda: sys.exit(0))
    assert costproof("workloads", cwd=tmp_path).code == 2


def test_a_fork_waits_until_a_process_is_started_and_lets_go_of_pipes() -> None:
    from costproof.processes.template import starting

    reading, writing = os.pipe()
    pipe = os.fdopen(writing, "wb", 0)
    foreign.own(pipe)
    began, go_on, order = threading.Event(), threading.Event(), []

    def start() -> None:
        with starting():
            began.set()
            go_on.wait(10)
            time.sleep(0.05)
            order.append("started")

    thread = threading.Thread(target=start)
    thread.start()
    began.wait(10)
    go_on.set()
    with warnings.catch_warnings(action="ignore"):  # of forks in a process with threads
        pid = os.fork()
    if not pid:
        os._exit(order == ["started"] and os.path.samestat(os.fstat(writing), os.stat(os.devnull)))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    thread.join()
    pipe.close()
    assert os.read(reading, 1) == b""
    os.close(reading)


@pytest.mark.parametrize(
    "line", ["import sys; sys.exit(0)", "import os; os._exit(9)", "raise KeyboardInterrupt", "x x"]
)
def test_the_body_of_a_file_fails_like_its_functions(
    line: str, tmp_path: Path, command: Callable[[str], Result]
) -> None:
    (tmp_path / "factories.py").write_text(f"\n\n{line}\ndef f(): pass\n")
    result = command("f")
    assert (result.code, result.stdout) == (2, "")
    assert "(factories.py:3)" in result.stderr


def test_errors_of_ours_pass_and_a_bug_of_ours_is_one_of_the_code() -> None:
    with pytest.raises(CostproofError, match="mine"), contained("x", "y"):
        raise CostproofError("mine")


def test_calls_of_several_threads_leave_stdout_open(tmp_path: Path) -> None:
    def work() -> None:
        for _ in range(20):
            with contained("x", "y"):
                print("said")

    before = os.fstat(1).st_ino
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.fstat(1).st_ino == before


FORWARD = """
import os, sys, torch
class Ends(torch.nn.Linear):
    def forward(self, x):
        {body}
        return super().forward(x)
def make(): return Ends(4, 4), torch.ones(2, 4)
"""


@pytest.mark.parametrize("body", ["sys.exit(0)", "os._exit(9)", "raise KeyboardInterrupt", "raise GeneratorExit"])
def test_a_forward_that_ends_the_program_is_bad_input(body: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FORWARD.format(body=body))
    for sources in ("static", "dynamic"):
        result = costproof(
            "capture", "own.py:make", "-o", "-", "--sources", sources, "--no-cache", "--progress", "never", cwd=tmp_path
        )
        assert (result.code, result.stdout) == (2, ""), result.stderr
        assert "own.py:5" in result.stderr


def test_what_a_forward_prints_is_not_in_the_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.py").write_text(FORWARD.format(body="print('said'); os.write(1, b'raw')"))
    result = costproof("capture", "own.py:make", "-o", "-", "--sources", "dynamic", "--progress", "never", cwd=tmp_path)
    assert result.code == 0, result.stderr
    assert result.stdout.startswith("{")
    assert capfd.readouterr().out == ""


def test_a_file_of_rules_that_exits_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text("import os\nos._exit(9)\n")
    with pytest.raises(BadInput, match="cannot be run") as caught, rules_from([tmp_path / "rules.py"]):
        pass
    assert caught.value.got == "SystemExit: os._exit (rules.py:2)"


@pytest.mark.parametrize(
    ("body", "what", "got"),
    [
        ("return 5", "returns an invalid cost", "5 (int)"),
        ("return None", "returns an invalid cost", "None"),
        (
            "return OpCost(role='matmult')",
            "returns an invalid cost",
            "role 'matmult', not one of matmul, vector, lookup",
        ),
        ("return OpCost(flops=2.5)", "returns an invalid cost", "flops = 2.5, not a count"),
        ("return OpCost(vector=-1)", "returns an invalid cost", "vector = -1, not a count"),
        ("return OpCost(reads='x')", "returns an invalid cost", "reads, not a tuple of Value"),
        ("return 1 / 0", "failed", "ZeroDivisionError: division by zero (mine.py:5)"),
        ("raise SystemExit(0)", "failed", "SystemExit: 0 (mine.py:5)"),
    ],
)
def test_a_rule_that_is_wrong_is_named_with_its_file(body: str, what: str, got: str, tmp_path: Path) -> None:
    lines = (
        "import costproof",
        "from costproof.opgraph.rules.cost import OpCost",
        "@costproof.operator_rule('mine::op')",
        "def rule(op):",
        f"    {body}",
    )
    (tmp_path / "mine.py").write_text("\n".join(lines))
    call = OpCall(label="x", name="mine.op", module="", call=1, tensors=(), outputs=())
    with rules_from([tmp_path / "mine.py"]), pytest.raises(BadInput, match=f"rule for mine.op {what}") as caught:
        cost_of(call)
    assert caught.value.where == f"rules_mine.rule in {tmp_path}/mine.py:3"
    assert caught.value.got is not None
    assert caught.value.got.startswith(got)


def test_a_transform_that_is_wrong_is_named(tmp_path: Path) -> None:
    lines = (
        "from costproof.opgraph.rules.registry import graph_transform",
        "@graph_transform",
        "def mine(graph): return 5",
    )
    (tmp_path / "mine.py").write_text("\n".join(lines))
    with rules_from([tmp_path / "mine.py"]):
        *_, transform = transforms()
        with pytest.raises(BadInput, match="the transform returns no graph") as caught:
            transform(Graph((), ()))
    assert caught.value.got == "int"


def test_explain_and_peaks_take_rules(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FORWARD.format(body="pass"))
    (tmp_path / "wrong.py").write_text("raise ValueError('seen')")
    for line in ("explain own.py:make forward --graph", "peaks own.py:make --progress never"):
        result = costproof(*line.split(), "--rules", "wrong.py", cwd=tmp_path)
        assert (result.code, result.stdout) == (2, "")
        assert "ValueError: seen (wrong.py:1)" in result.stderr
    without = costproof("explain", "bert", "text", "--rules", "wrong.py", cwd=tmp_path)
    assert (without.code, "add --graph" in without.stderr) == (2, True)
