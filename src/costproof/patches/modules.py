"""Hook modules, redirect direct calls of their ``forward``, and run transformers models on the meta device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

from costproof.patches import flash_attention

if TYPE_CHECKING:
    import torch
    from torch import nn

Hook = Callable[..., None]


@contextmanager
def hooked(
    modules: Iterable[nn.Module], enter: Hook, leave: Hook, *, with_kwargs: bool = False, first: bool = False
) -> Iterator[None]:
    """Register forward hooks on modules while the block runs.

    Args:
        enter: called with (module, args), or (module, args, kwargs).
        leave: called with the same and the output, also after an exception, which a caller may catch.
        first: call ``enter`` before the module's own hooks, which then run inside.
    """
    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_pre_hook(enter, prepend=first, with_kwargs=with_kwargs).remove)
            stack.callback(module.register_forward_hook(leave, with_kwargs=with_kwargs, always_call=True).remove)
        yield


@contextmanager
def forward_redirected(model: nn.Module) -> Iterator[None]:
    """Redirect direct calls of a submodule's ``forward`` to its ``__call__`` while the block runs.

    Hooks and the module stack of an export depend on ``__call__``. Without the redirection the work of a submodule that
    is run by ``part.forward(x)`` would belong to its caller. TorchLens wraps ``forward`` itself and does not need this.
    """
    import torch

    announced: set[int] = set()
    """Keys of modules whose ``__call__`` has begun and whose ``forward`` has not."""

    def announce(module: nn.Module, args: Any) -> None:
        announced.add(_key(module))

    with ExitStack() as undo:
        modules = [m for m in model.modules() if m is not model and not isinstance(m, torch.jit.ScriptModule)]
        redirected = {_key(m) for m in modules if "forward" not in vars(m)}
        for cls in dict.fromkeys(type(m) for m in modules):
            _redirect_class(cls, undo, redirected, announced)
        for module in modules:
            undo.callback(module.register_forward_pre_hook(announce).remove)
            if "forward" in vars(module):
                _redirect_instance(module, undo, announced)
        yield


def _key(module: nn.Module) -> int:
    """Return a key of a module that its placeholder in an export shares, since both share a ``__dict__``."""
    return id(vars(module))


def _redirect_class(cls: type[nn.Module], undo: ExitStack, redirected: set[int], announced: set[int]) -> None:
    """Replace ``forward`` of a class so that a direct call runs the module with its hooks.

    The class is patched, not the instance, since an export calls it on placeholders.
    """
    original = cls.forward

    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        key = _key(self)
        # A class that calls the forward of its base class is inside its own call already.
        if key not in redirected or type(self).forward is not forward:
            return original(self, *args, **kwargs)
        if key in announced:
            announced.discard(key)
            return original(self, *args, **kwargs)
        return self(*args, **kwargs)

    if "forward" in vars(cls):
        undo.callback(setattr, cls, "forward", vars(cls)["forward"])
    else:
        undo.callback(delattr, cls, "forward")
    cls.forward = forward


def _redirect_instance(module: nn.Module, undo: ExitStack, announced: set[int]) -> None:
    """Replace a ``forward`` that is an instance attribute so that a direct call runs the module with its hooks."""
    original, own = module.forward, vars(module)

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if _key(module) in announced:
            announced.discard(_key(module))
            return original(*args, **kwargs)
        return module(*args, **kwargs)

    undo.callback(own.update, forward=original)
    own["forward"] = forward


@contextmanager
def hooks_inside_forward(model: nn.Module) -> Iterator[None]:
    """Run the hooks of submodules inside their ``forward`` while the block runs, to attribute the hooks' work to them.

    An export attributes it there. TorchLens wraps ``forward`` and would attribute it to the enclosing module.
    """
    import torch

    with ExitStack() as undo:
        for part in model.modules():
            has_hooks = part._forward_pre_hooks or part._forward_hooks
            if part is not model and has_hooks and not isinstance(part, torch.jit.ScriptModule):
                _move_hooks(part, undo)
        yield


def _move_hooks(part: nn.Module, undo: ExitStack) -> None:
    original, own = part.forward, vars(part)
    before = _disable_hooks(part._forward_pre_hooks, undo)
    behind = _disable_hooks(part._forward_hooks, undo)

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        for key, hook in before.items():
            if key in part._forward_pre_hooks_with_kwargs:
                args, kwargs = hook(part, args, kwargs) or (args, kwargs)
            elif key in part._forward_pre_hooks and (changed := hook(part, args)) is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        result = original(*args, **kwargs)
        for key, hook in behind.items():
            given = (args, kwargs) if key in part._forward_hooks_with_kwargs else (args,)
            if key in part._forward_hooks and (changed := hook(part, *given, result)) is not None:
                result = changed
        return result

    if "forward" in own:
        undo.callback(own.update, forward=original)
    else:
        undo.callback(own.pop, "forward", None)
    own["forward"] = forward


def _disable_hooks(hooks: dict[int, Any], undo: ExitStack) -> dict[int, Any]:
    """Replace hooks by no-ops, and return the hooks so that they can be called elsewhere."""
    original = dict(hooks)

    def restore() -> None:
        hooks.update({key: hook for key, hook in original.items() if key in hooks})

    undo.callback(restore)
    hooks.update(dict.fromkeys(original, _no_hook))
    return original


def _no_hook(*args: Any) -> None:
    """Do nothing in place of a hook."""


def prepared_masks(modeling: Any) -> dict[str, Any]:
    """Return replacements for the mask builders of a modelling module, which return the caller's mask.

    transformers builds masks from tensor values, and builds a different one during an export.
    """

    def pass_on(*args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return attention_mask

    return {n: pass_on for n in vars(modeling) if n.startswith("create_") and n.endswith("causal_mask")}


def no_image_check() -> dict[str, Any]:
    """Return a replacement for transformers' check that image tokens and image features are equally many."""
    return {"torch_compilable_check": lambda *args, **kwargs: None}


def symbolic_int() -> AbstractContextManager[Any]:
    """Make ``int()`` in transformers' SAM module return symbolic sizes unchanged while the block runs."""
    import torch
    from transformers.models.unlimited_ocr import modeling_unlimited_ocr as modeling

    return mock.patch.object(modeling, "int", lambda s: s if isinstance(s, torch.SymInt) else int(s), create=True)


@contextmanager
def running(
    replaced: Mapping[Any, Mapping[str, Any]], dtype: torch.dtype | None = None, *, flash: bool = False
) -> Iterator[None]:
    """Apply the patches that a forward on the meta device needs while the block runs.

    Gradients are off. The given names of modules are replaced, for example checks that need concrete values. For
    dtypes other than bfloat16, the meta kernel of grouped GEMMs is replaced, because it rejects dtypes that the real
    kernels accept.

    Args:
        replaced: replacements by name of a variable, for each Python module.
        flash: whether the functions of FlashAttention are replaced by ones that run on the meta device.
    """
    import torch

    before = {module: {name: vars(module)[name] for name in names} for module, names in replaced.items()}
    library = None
    try:
        for module, names in replaced.items():
            vars(module).update(names)
        if dtype not in (None, torch.bfloat16) and not torch.compiler.is_compiling():
            library = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]
            library.impl("_grouped_mm", _grouped_mm_shape, "Meta", allow_override=True)  # type: ignore[no-untyped-call]
        with flash_attention.on_meta() if flash else nullcontext(), torch.no_grad():
            yield
    finally:
        for module, names in before.items():
            vars(module).update(names)
        if library is not None:
            library._destroy()  # type: ignore[no-untyped-call]


def _grouped_mm_shape(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return an empty grouped matrix product on meta: [rows, N] for [rows, K] and [experts, K, N]."""
    if mat_a.dim() != 2 or mat_b.dim() != 3 or mat_a.shape[1] != mat_b.shape[1]:
        raise ValueError(f"grouped GEMM of {tuple(mat_a.shape)} by {tuple(mat_b.shape)}")
    import torch

    # The operator itself, not the method: a tracer of Python calls must see one grouped GEMM here.
    result: torch.Tensor = torch.ops.aten.new_empty.default(
        mat_a, [mat_a.shape[0], mat_b.shape[2]], dtype=out_dtype or mat_a.dtype
    )
    return result
