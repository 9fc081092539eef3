"""Callgraphs as scripts wrote them before the file had a header: brought into the form of today.

They have ``call_counts`` and ``edges``, mostly ``op_call_counts`` (a module's operators as one number),
``module_children`` and ``module_types``, some constructor parameters, shapes and events. Keys are module paths;
the root is empty or ``(root)``, and the number of a call may stand behind a path (``layers.0.mlp:1``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

ROOT: Final = "(root)"
ANY_OPERATOR: Final = "(any)"
"""The operators of a module together, where the file does not tell them apart."""

_CALL: Final = re.compile(r":\d+$")


def is_old(data: object) -> TypeGuard[dict[str, Any]]:
    """Whether this is a callgraph without the header that every file of ours begins with."""
    return isinstance(data, dict) and "schema" not in data and {"call_counts", "edges"} <= data.keys()


def renewed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``callgraph.json``. What is none of theirs is left out, what is damaged stays as it is."""
    made: dict[str, Any] = {
        key: _keyed(data.get(key, {}))
        for key in ("call_counts", "module_children", "module_types", "constructor_params")
    }
    made["edges"] = data["edges"]
    if isinstance(made["edges"], dict):
        made["edges"] = {"->".join(map(_path, key.split("->"))): n for key, n in made["edges"].items()}
    made["op_call_counts"] = _operators(data.get("op_call_counts", {}))
    for key in ("input_metadata", "output_metadata"):
        made[key] = {path: _values(values) for path, values in _keyed(data.get(key, {})).items()}
    events = data.get("events", [])
    made["events"] = [
        {"index": i, "event": event.get("event"), "name": _path(event.get("name"))} for i, event in enumerate(events)
    ]
    return made


def _path(path: Any) -> Any:
    return (_CALL.sub("", path) or ROOT) if isinstance(path, str) else path


def _keyed(values: Any) -> Any:
    return {_path(path): value for path, value in values.items()} if isinstance(values, dict) else values


def _operators(counts: Any) -> Any:
    """Module -> operator -> calls; calls of one module are added up."""
    if not isinstance(counts, dict):
        return counts
    found: dict[str, Any] = {}
    for path, given in counts.items():
        if not isinstance(given, int):
            found[_path(path)] = given
        else:
            known = found.setdefault(_path(path), {ANY_OPERATOR: 0})
            known[ANY_OPERATOR] += given
    return found


def _values(calls: Any) -> Any:
    """Tensors with their shapes; of old files, all that one call took or gave stands in one entry."""
    if not isinstance(calls, list):
        return calls
    tensors = [t for call in calls for t in (call.get("tensors", [call]) if isinstance(call, dict) else [call])]
    return [
        {**t, "dtype": str(t["dtype"]).removeprefix("torch.")} if isinstance(t, dict) and "dtype" in t else t
        for t in tensors
    ]
