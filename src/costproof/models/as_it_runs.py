"""A model as it runs, while something watches: evaluated, not compiled, and not told that it is traced.

transformers asks whether it is traced, and then takes another way than a run does: it builds masks that a run skips,
repeats keys that a run packs, picks another algorithm. It also looks at numbers that shapes do not hold: is a token
padding, does a mask hide anything, is a row several sequences? An export and a trace on shapes would count what never
runs, or stop. For the time of :func:`as_it_runs` it gets the answers that a run of whole, unpadded rows gives.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from costproof.models.putting_back import PuttingBack

if TYPE_CHECKING:
    from torch import nn

NO_PADDING: Final = "a padding mask holds no numbers here; it is taken to hide nothing"

_CACHING: Final = "transformers.pytorch_utils"
"""Keeps results of functions while it is not compiled: tensors of one trace would enter the next without a producer."""
_COMPILING: Final = "is_torchdynamo_compiling"

_ROTATION: Final = "rope_type"
"""Attribute of the modules of transformers that make tables of angles."""
_KEEPING: Final = functools._lru_cache_wrapper

Notes = dict[str, None]

_open: list[Notes] = []
"""The notes of the context that is open: only the outermost one changes transformers."""


def forget() -> None:
    """No context is open any more: an interrupt or a fork has ended all of them."""
    _open.clear()


@contextmanager
def as_it_runs(model: nn.Module) -> Iterator[Notes]:
    """Let a model take the way of a plain run for the time of the block; everything is put back, however it ends.

    Modules are in eval mode, without gradients and outside ``inference_mode``; compiled ones run as they were written,
    those that a forward casts are cast in it alone, and functions that keep their results have none yet. torch.nn's
    layers of attention run as the modules that they are made of: the one operator that they may take on a CPU does the
    same work, and hides whose it is.

    Yields:
        What was taken for granted so far, one sentence each.
    """
    import torch

    from costproof.models.generic.numbers import prepared
    from costproof.models.generic.unpadded import unpadded

    with ExitStack() as undo:
        trained = [m for m in model.modules() if m.training]
        undo.callback(_train, trained, True)
        _train(trained, False)
        undo.enter_context(_uncompiled())
        undo.enter_context(torch.inference_mode(False))
        undo.enter_context(torch.no_grad())
        _casting(undo, model)
        _forgetting(undo, model)
        _steady(undo, model)
        undo.enter_context(prepared(model))
        undo.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        if not _open:
            _open.append(Notes())
            undo.callback(_open.clear)
            if "transformers" in sys.modules:
                _unaware(undo, _open[0])
            undo.enter_context(unpadded(model, _open[0]))
        yield _open[0]


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Run compiled modules and functions as they were written, so that a tracer sees inside them."""
    # Whoever compiled something has imported this; importing it for nothing takes a second.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    import torch

    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", message="TorchLens: compiled model detected")
        yield


def _casting(undo: ExitStack, model: nn.Module) -> None:
    """Let ``part.to(dtype)`` in a forward put tensors in the place of parameters: an export cannot change these."""
    import torch

    original: Any = torch.nn.Module._apply
    # By what a module holds: an export runs stand-ins that share it.
    parts = {id(part._parameters) for part in model.modules() if part is not model}

    def apply(self: nn.Module, fn: Callable[..., Any], *rest: Any, **more: Any) -> Any:
        if id(self._parameters) not in parts:
            return original(self, fn, *rest, **more)
        for part in self.modules():
            for held in (part._parameters, part._buffers):
                for key, before in held.items():
                    if before is not None and (made := fn(before)) is not before:
                        held[key] = made
                        undo.callback(_back, held, key, made, before)
        return self

    undo.enter_context(mock.patch.object(torch.nn.Module, "_apply", apply))


def _back(held: dict[str, Any], key: str, made: Any, before: Any) -> None:
    """Put back what a cast replaced; an export has put back its own by then."""
    if held.get(key) is made:
        held[key] = before


def _train(modules: list[nn.Module], flag: bool) -> None:
    """Not by ``train()``: that reaches children of another mode, and a model may merge its weights there."""
    for module in modules:
        module.training = flag


def _steady(undo: ExitStack, model: nn.Module) -> None:
    """Keep rotations of the kind ``dynamic`` from asking for the largest position, a number that shapes do not hold.

    They work out other frequencies for positions beyond the context, and a run is not longer than that.
    """
    for part in model.modules():
        kind = vars(part).get(_ROTATION)
        if kind == "dynamic":
            undo.enter_context(mock.patch.dict(vars(part), {_ROTATION: "default"}))
        elif isinstance(kind, dict) and "dynamic" in kind.values():
            steady = {name: "default" if one == "dynamic" else one for name, one in kind.items()}
            undo.enter_context(mock.patch.dict(vars(part), {_ROTATION: steady}))


def _forgetting(undo: ExitStack, model: nn.Module) -> None:
    """Let the functions beside the model's classes that keep results (``functools.lru_cache``) begin anew.

    A tensor that one run made would enter the next without a producer, and one that an export made is not a tensor.
    """
    kinds = dict.fromkeys(kind for module in model.modules() for kind in type(module).__mro__)
    names = dict.fromkeys(kind.__module__ for kind in kinds)
    before = PuttingBack(undo, frozenset(names.keys() - {object.__module__}))
    before.module(model)
    for name in names:
        for owner in (sys.modules.get(name), *(kind for kind in kinds if kind.__module__ == name)):
            for key, kept in list(getattr(owner, "__dict__", {}).items()):
                if isinstance(kept, _KEEPING) and kept.__module__ == name:
                    anew = functools.lru_cache(**kept.cache_parameters())(kept.__wrapped__)
                    undo.enter_context(mock.patch.object(owner, key, anew))
            if owner is not None:
                before.variables(owner)


def _unaware(undo: ExitStack, notes: dict[str, None]) -> None:
    """Replace what transformers asks about its surroundings."""
    for place, owner, method, method_change in _METHODS:
        cls = vars(sys.modules.get(f"transformers.{place}") or object).get(owner)
        if cls is not None and hasattr(cls, method):
            undo.enter_context(mock.patch.object(cls, method, method_change(getattr(cls, method), notes)))
    if "torch._dynamo" in sys.modules:
        # A hint for compilers, written on tensors that an export only imitates.
        undo.enter_context(mock.patch("torch._dynamo.mark_static_address", _nothing))
    swaps: list[tuple[str, Any, Any]] = []
    for place, changes in _FUNCTIONS.items():
        source = vars(sys.modules.get(f"transformers.{place}") or object)
        swaps += (
            (name, source[name], change(source[name], notes)) for name, change in changes.items() if name in source
        )
    undo.callback(_everywhere, [(name, changed, original) for name, original, changed in swaps])
    _everywhere(swaps)
    keeping = sys.modules.get(_CACHING)
    if hasattr(keeping, _COMPILING):  # transformers 4.46 keeps nothing there
        undo.enter_context(mock.patch.object(keeping, _COMPILING, return_value=True))


def _everywhere(swaps: list[tuple[str, Any, Any]]) -> None:
    """Put each (name, old, new) into every module that has the old under its name, those imported meanwhile too."""
    named = {name: (old, new) for name, old, new in swaps}
    for module in _holders():
        names = getattr(module, "__dict__", {})
        for name in named.keys() & names.keys():
            old, new = named[name]
            if names[name] is old:
                names[name] = new


_lacking: Final[dict[int, weakref.ref[ModuleType]]] = {}
"""Modules of packages that have none of the functions, by id; each reference goes with its module."""


def _holders() -> list[Any]:
    """Return the modules that have one of the functions or may get one.

    Most of thousands are remembered not to: plain modules of packages. A module of anybody else may be reloaded or
    written to, and one with a class of its own may fetch a function when it is first asked for it.
    """
    modules = {id(module): module for module in list(sys.modules.values())}
    found = [modules[key] for key in modules.keys() - _lacking.keys()]
    for module in found:
        if type(module) is ModuleType and _is_complete(module) and _CHANGED.isdisjoint(vars(module)):
            _remember(module)
    return found


def _remember(module: ModuleType) -> None:
    """Remember that a module lacks the functions, until it goes: another one may get its id."""
    key = id(module)
    _lacking[key] = weakref.ref(module, lambda _: _lacking.pop(key, None))


def _is_complete(module: ModuleType) -> bool:
    """Return whether a module is Python's or of a package, and is imported to its end."""
    file, spec = getattr(module, "__file__", None) or "", getattr(module, "__spec__", None)
    own = f"{os.sep}site-packages{os.sep}" in file or module.__name__.partition(".")[0] in sys.stdlib_module_names
    return own and spec is not None and not getattr(spec, "_initializing", False)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """In place of a warning or a hint."""


def _without_numbers(value: Any) -> bool:
    """Whether a padding mask, or what is worked out of one, cannot be looked at, or is known to hide nothing."""
    from costproof.models.generic.numbers import Numbers
    from costproof.models.generic.unpadded import without_numbers

    return isinstance(value, Numbers) or without_numbers(value)


Change = Callable[[Callable[..., Any], Notes], Callable[..., Any]]
"""(function, notes) -> what stands in its place."""


def _always(answer: bool | None) -> Change:
    return lambda original, notes: lambda *args, **kwargs: answer


def _unless_known(answer: bool | None, parameter: str) -> Change:
    """``answer`` where an argument is a tensor without numbers."""

    def change(original: Callable[..., Any], notes: Notes) -> Callable[..., Any]:
        given = inspect.signature(original).bind

        @functools.wraps(original)
        def asked(*args: Any, **kwargs: Any) -> Any:
            if _without_numbers(given(*args, **kwargs).arguments.get(parameter)):
                return answer
            return original(*args, **kwargs)

        return asked

    return change


def _unmasked(parameter: str, *, static: bool = False, answer: bool = False) -> Change:
    """The function without a padding mask [B, S], where that has no numbers.

    Args:
        static: the function is a static method.
        answer: without a mask it is not called, and there is no mask.
    """

    def change(original: Callable[..., Any], notes: Notes) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def asked(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            mask = given.arguments.get(parameter)
            if mask is None or not _without_numbers(mask) or mask.dim() != 2:
                return original(*args, **kwargs)
            notes[NO_PADDING] = None
            if answer:
                return None
            given.arguments[parameter] = None
            return original(*given.args, **given.kwargs)

        return staticmethod(asked) if static else asked

    return change


def _of_experts(original: Callable[..., Any], notes: Notes) -> Callable[..., Any]:
    """Shapes of grouped products are known for bfloat16 alone; others go through one operator of transformers."""
    import torch

    @functools.wraps(original)
    def asked(tokens: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
        if weight.dtype != torch.bfloat16 and _without_numbers(weight):
            return False
        return original(tokens, weight, *args, **kwargs)

    return asked


def _by_number(original: Callable[..., Any], notes: Notes) -> Callable[..., Any]:
    """Features of a tower are added at the places of a mask: without numbers, at as many first places."""
    import torch

    @functools.wraps(original)
    def asked(self: Any, hidden_states: Any, visual_pos_masks: Any, visual_embeds: Any) -> Any:
        if not (visual_pos_masks.is_meta or _without_numbers(visual_pos_masks)):
            return original(self, hidden_states, visual_pos_masks, visual_embeds)
        hidden_states = hidden_states.clone()
        found = torch.arange(visual_embeds.shape[0], device=hidden_states.device)
        places = (found // hidden_states.shape[1], found % hidden_states.shape[1])
        hidden_states[places] = hidden_states[places] + visual_embeds.to(hidden_states.device, hidden_states.dtype)
        return hidden_states

    return asked


_DEEPSTACK: Final = {
    "cohere_compass": "CohereCompassTextModel",
    "granite_docling": "GraniteDoclingTextModel",
    "qwen3_omni_moe": "Qwen3OmniMoeThinkerTextModel",
    "qwen3_vl": "Qwen3VLTextModel",
    "qwen3_vl_moe": "Qwen3VLMoeTextModel",
}
"""Models of transformers -> their decoders that get features of several layers of a tower."""
_METHODS: Final[tuple[tuple[str, str, str, Change], ...]] = (
    ("modeling_utils", "PreTrainedModel", "warn_if_padding_and_no_attention_mask", _always(None)),
    (
        "modeling_attn_mask_utils",
        "AttentionMaskConverter",
        "_ignore_causal_mask_sdpa",
        _unmasked("attention_mask", static=True),
    ),
    *(
        (f"models.{place}.modeling_{place}", owner, "_deepstack_process", _by_number)
        for place, owner in _DEEPSTACK.items()
    ),
)
"""Module of transformers, class, method, and what stands in its place."""

_FUNCTIONS: Final[Mapping[str, Mapping[str, Change]]] = {
    "utils.import_utils": {
        "is_tracing": _always(False),
        "is_torchdynamo_compiling": _always(False),
        "is_torchdynamo_exporting": _always(False),
        "torch_compilable_check": _unless_known(None, "cond"),
    },
    "masking_utils": {
        "_ignore_causal_mask_sdpa": _unmasked("padding_mask"),
        "_ignore_bidirectional_mask_sdpa": _unmasked("padding_mask"),
        "create_recurrent_attention_mask": _unmasked("attention_mask"),
        "find_packed_sequence_indices": _unless_known(None, "position_ids"),
    },
    "modeling_attn_mask_utils": {"_prepare_4d_attention_mask_for_sdpa": _unmasked("mask", answer=True)},
    "modeling_flash_attention_utils": {"_is_packed_sequence": _unless_known(False, "position_ids")},
    "integrations.moe": {"_can_use_grouped_mm": _of_experts},
}
"""Module of transformers -> function -> what stands in its place."""
_CHANGED: Final = frozenset(name for changes in _FUNCTIONS.values() for name in changes)
