"""What a real run on the CPU takes from the allocator, as torch's profiler records it: a judge of peaks.

Nothing of costproof is used. Every operator at the dispatcher is a mark in the record, so an allocation is either that
of a tensor which an operator returned, or one that an operator made for itself (a workspace) and has a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

_MARK = "operator "


@dataclass(frozen=True, slots=True)
class Allocated:
    """The peak of a run, without its inputs and parameters."""

    peak: int
    """Of everything that was allocated."""
    tensors: int
    """The peak of what operators returned."""
    workspaces: dict[str, int]
    """Operator -> bytes that it holds for itself at the peak of everything."""
    tensors_then: int
    """What operators had returned and is alive at the peak of everything."""


class _Marks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts a mark around every operator, and notes the addresses of what it returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.returned: list[set[int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        with record_function(f"{_MARK}{len(self.names) - 1}"):
            result = func(*args, **(kwargs or {}))
        found = (t.untyped_storage().data_ptr() for t in tree_iter(result) if isinstance(t, torch.Tensor))
        self.returned.append(set(found))
        return result


def allocated(run: Callable[[], object]) -> Allocated:
    """Run something, and say what it allocated; its result stays alive for as long as it runs."""
    marks = _Marks()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record, torch.no_grad(), marks:
        result = run()
    del result
    events = sorted(_allocations(record.profiler.kineto_results.experimental_event_tree()), key=lambda e: e[0])
    tensors = _of_tensors(events, marks)
    # At one address there is one thing at a time.
    alive: dict[int, tuple[int, str | None]] = {}
    held = of_tensors = most = highest = then = 0
    spaces: Counter[str] = Counter()
    for number, (_, address, size, mark) in enumerate(events):
        if size > 0:
            alive[address] = (size, None if number in tensors else "no operator" if mark < 0 else marks.names[mark])
        elif address not in alive:
            continue  # an input
        else:
            del alive[address]
            continue
        held = sum(s for s, _ in alive.values())
        of_tensors = sum(s for s, name in alive.values() if name is None)
        most = max(most, of_tensors)
        if held > highest:
            highest, then = held, of_tensors
            spaces = Counter()
            for s, name in alive.values():
                if name is not None:
                    spaces[name] += s
    return Allocated(highest, most, dict(spaces), then)


def _allocations(events: Any, mark: int = -1) -> Iterator[tuple[int, int, int, int]]:
    """Time, address, bytes (negative: given back; 0: a mark begins), and the innermost mark around it (-1: none)."""
    for event in events:
        name, inside = str(event.name), mark
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            yield event.start_time_ns, int(fields.ptr), int(fields.alloc_size), mark
        elif name.startswith(_MARK):
            inside = int(name.removeprefix(_MARK))
            yield event.start_time_ns, 0, 0, inside
        yield from _allocations(event.children, inside)


def _of_tensors(events: list[tuple[int, int, int, int]], marks: _Marks) -> set[int]:
    """Numbers of the allocations of tensors: in an operator, the last at the address of what it returned.

    Python makes some itself (``torch.tensor``), and an operator returns them later: those too.
    """
    last: dict[tuple[int, int], int] = {}
    made: dict[int, int] = {}
    found: set[int] = set()
    for number, (_, address, size, mark) in enumerate(events):
        if size > 0 and mark >= 0 and address in marks.returned[mark]:
            last[mark, address] = number
        elif size > 0 and mark < 0:
            made[address] = number
        elif size < 0:
            made.pop(address, None)
        elif mark >= 0:
            found.update(n for a, n in made.items() if a in marks.returned[mark])
    return {*last.values(), *found}
