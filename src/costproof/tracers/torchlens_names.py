"""How TorchLens names modules, calls, tensors and arguments, brought into words of ours."""

from __future__ import annotations

from typing import Any


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


def argument_names(record: Any) -> list[str]:
    """Names of the positional arguments; methods come without their first, custom operators have a schema."""
    if "." in record.func_name:
        return schema_names(record.func_name)
    names = [str(n).strip() for n in record.arg_names]
    method = (record.func_qualname or "").startswith("TensorBase.")
    if record.func_name.startswith("__") and not names:
        return ["input", "other"]
    if method and names[:1] not in (["input"], ["self"]):
        return ["input", *names]
    return names


def schema_names(operator: str) -> list[str]:
    """Names of the arguments of a custom operator, ``namespace.name``; none if its overloads differ in them."""
    import torch

    space, _, name = operator.partition(".")
    packet = getattr(getattr(torch.ops, space), name)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    found = [[str(a.name) for a in schema.arguments] for schema in schemas]
    return found[0] if found and all(names == found[0] for names in found) else []
