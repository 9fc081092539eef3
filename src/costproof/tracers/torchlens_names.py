"""How TorchLens names modules, calls, tensors and arguments, brought into words of ours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any, Final

_BUILT_IN: Final = ("_VariableFunctionsClass.", "fft_", "linalg_", "special_")
"""How torch's own names of functions begin whose arguments are those of an operator of the same name."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The positional arguments of an operator."""

    names: list[str]
    tensors: Collection[int] | None = None
    """Places that take one tensor; ``None``: it is not known which do."""
    lists: Sequence[int] = ()
    """Places that take a list of tensors."""


def tensor_label(label: str) -> str:
    """With the pass: TorchLens leaves it out where a layer has only one."""
    return label if ":" in label else f"{label}:1"


def module_path(address: str) -> str:
    """Path from the traced module; TorchLens calls that one ``self``."""
    return "" if address == "self" else address


def place(where: Any) -> tuple[Any, ...]:
    """Where an argument stands, as a path into the nested arguments."""
    return where if isinstance(where, tuple) else (where,)


def in_order(where: tuple[Any, ...]) -> tuple[str, ...]:
    """Key that sorts places as the call has them."""
    return tuple(f"{p:06d}" if isinstance(p, int) else str(p) for p in where)


def operator_name(record: Any) -> str:
    """The operator; ``fft_fft`` and ``linalg_norm`` with the part of torch that they belong to."""
    name, full = str(record.func_name), str(record.func_qualname or "")
    return full if full.startswith(_BUILT_IN[1:]) and full.endswith(f"_{name}") else name


def signature(record: Any, places: Collection[tuple[Any, ...]]) -> Signature:
    """The arguments of a recorded call; methods come without their first, custom operators have a schema.

    Args:
        places: where activations stand.
    """
    if "." in record.func_name:
        return Signature(list(_common_names(_schemas(*record.func_name.split(".", 1)))))
    names = [str(n).strip() for n in record.arg_names]
    full = record.func_qualname or ""
    if full.startswith(_BUILT_IN) or not (names or full.startswith("TensorBase.")):
        for schema in _schemas("aten", operator_name(record)):
            found = _fitting(schema, record, places)
            if found is not None:
                return found
    if record.func_name.startswith("__") and not names:
        names = ["input", "other"]
    elif full.startswith("TensorBase.") and names[:1] not in (["input"], ["self"]):
        names = ["input", *names]
    return Signature(names)


def keyword_place(where: Any, form: Signature, after: int) -> tuple[Any, ...]:
    """Where an argument stands that is given by its name, as if it were given by its place.

    Args:
        after: how many arguments are given by their places; a name among theirs is a wrong one, and stays a name.
    """
    name, *inside = place(where)
    # Functions of torch say ``input`` where the schema of their operator says ``self``.
    known = "self" if name == "input" and form.names[:1] == ["self"] else name
    return (form.names.index(known, after) if known in form.names[after:] else name, *inside)


def parameter_places(
    leaves: Sequence[str], given: Collection[tuple[Any, ...]], form: Signature, named: Collection[tuple[Any, ...]] = ()
) -> list[tuple[Any, ...]]:
    """Where the parameters of a call stand, which TorchLens does not say: in the places that no activation holds.

    Args:
        leaves: the parameters' own names; one that is called as an argument is that argument, of several the last.
        given: where activations stand.
        named: those of them that the call gives by name.
    """
    certain = {where[0] for where in named}
    taken, result = set(given), list[tuple[Any, ...]]()
    for at, leaf in enumerate(leaves):
        held = {where[0] for where in taken}
        wanted = form.names.index(leaf) if leaf in form.names and leaf not in leaves[at + 1 :] else None
        free = count() if form.tensors is None else iter(form.tensors)
        slot = wanted if wanted is not None and wanted not in held else next((i for i in free if i not in held), None)
        where = _in_list(taken, form) if slot is None else (slot,)
        swap = form.tensors is None and wanted not in certain
        if swap and wanted is not None and slot is not None and wanted != slot < len(form.names):
            # The names are those of the function around the operator, which passes them in another order.
            form.names[slot], form.names[wanted] = form.names[wanted], form.names[slot]
        taken.add(where)
        result.append(where)
    return result


def _in_list(taken: Collection[tuple[Any, ...]], form: Signature) -> tuple[Any, ...]:
    """The first hole in a list of activations; else the end of a list without one, or of the last list."""
    held = {at: {where[1] for where in taken if len(where) > 1 and where[0] == at} for at in form.lists}
    for at, inside in held.items():
        hole = next(i for i in count() if i not in inside)
        if hole < len(inside):
            return (at, hole)
    empty = [at for at, inside in held.items() if not inside]
    if not held:
        return (next(i for i in count(len(form.names)) if (i,) not in taken),)
    at = empty[0] if empty else max(held)
    return (at, len(held[at]))


def _fitting(schema: _Schema, record: Any, places: Collection[tuple[Any, ...]]) -> Signature | None:
    """The signature, if a call with tensors at these places can be one of this schema."""
    form, given = schema.form, record.num_pos_args
    kinds = (form.tensors or (), form.lists)
    if len(form.names) < given or any(where[0] not in kinds[len(where) > 1] for where in places):
        return None
    held = {where[0] for where in places}
    needed = [i for i in schema.required if i < given and i not in held]
    return form if len(needed) <= len(record._param_logs) else None


@dataclass(frozen=True, slots=True)
class _Schema:
    form: Signature
    required: tuple[int, ...]
    """Places of tensors that must be given."""


@cache
def _schemas(space: str, name: str) -> tuple[_Schema, ...]:
    import torch

    packet = getattr(getattr(torch.ops, space), name, None)
    found = []
    for overload in packet.overloads() if packet is not None else ():
        arguments = [a for a in getattr(packet, overload)._schema.arguments if not a.kwarg_only or space != "aten"]
        kinds = [str(a.type) for a in arguments]
        tensors = tuple(i for i, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]"))
        lists = tuple(i for i, kind in enumerate(kinds) if kind.startswith("List[") and "Tensor" in kind)
        names = [str(a.name) for a in arguments]
        found.append(_Schema(Signature(names, tensors, lists), tuple(i for i in tensors if kinds[i] == "Tensor")))
    return tuple(found)


def _common_names(schemas: Sequence[_Schema]) -> list[str]:
    """Names of the arguments of a custom operator; none if its overloads differ in them."""
    found = [schema.form.names for schema in schemas]
    return found[0] if found and all(names == found[0] for names in found) else []
