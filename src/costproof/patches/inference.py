"""Run a model as in plain inference while it is traced: eval mode, uncompiled, unaware of being traced.

transformers asks whether it is traced and then takes a different branch: it builds masks that a run skips, repeats keys
that a run packs, or picks another algorithm. It also looks at values that shapes do not determine: whether a token is
padding, a mask hides anything, or a row holds several sequences. Exports and traces on the meta device would count what
never runs, or stop. :func:`inference_context` gives the answers of a run on whole, unpadded rows.

An export leaves fake tensors behind, and tensors of one run would enter the next without a producer. Code stores them
in global variables, in classes, in lists and dicts of these, in functions (closures, defaults, attributes), and in
objects of its own that a module has. :class:`StateSnapshot` removes them; other changes that a run makes there remain.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, MutableSequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.attributes import has_attribute
from costproof.patches import flash_attention
from costproof.patches.patch import LoadedPatch, Patch, is_complete, is_installed, patched

if TYPE_CHECKING:
    from torch import nn

NO_PADDING: Final = "a padding mask holds no numbers here; it is taken to hide nothing"

_ROPE_TYPE: Final = "rope_type"
"""Attribute with the kind of rotary embedding in the modules of transformers."""
_TEST: Final = "tracers/test_as_it_runs.py"

Assumptions = dict[str, None]
"""Sentences on the assumptions of a run, as the keys of a dict, in order."""

_DICTS: Final = frozenset({dict, OrderedDict, defaultdict})
_LISTS: Final = frozenset({list, deque})
_OURS: Final = __name__.partition(".")[0] + "."
_EMPTY: Final = object()
"""Content of an empty closure cell."""
_open: list[Assumptions] = []
"""Assumptions of the open inference context, if any; only the outermost context patches transformers."""


def forget() -> None:
    """Discard an inference context that an interrupt or a fork has left open."""
    _open.clear()


@contextmanager
def inference_context(model: nn.Module) -> Iterator[Assumptions]:
    """Make a model run as in plain inference while the block runs, and restore everything afterwards.

    Modules are in eval mode, without gradients and outside ``inference_mode``. Compiled modules run as they were
    written, a cast of a module inside a forward is undone, and memoized functions begin without results. The attention
    layers of torch.nn run as the modules that they consist of: the fused operator that they may use on a CPU does the
    same work, but hides the modules that do it.

    Yields:
        The assumptions of the run so far, one sentence each.
    """
    import torch

    from costproof.patches import flex_attention, nested  # its rules need sympy, which lists of targets do not load
    from costproof.patches.input_values import precomputed, without_padding

    with ExitStack() as undo:
        training = [m for m in model.modules() if m.training]
        undo.callback(_set_training, training, True)
        _set_training(training, False)
        undo.enter_context(_uncompiled())
        undo.enter_context(torch.inference_mode(False))
        undo.enter_context(torch.no_grad())
        # By the dict of its parameters, since an export runs stand-ins that share it.
        parts = {id(part._parameters) for part in model.modules() if part is not model}
        undo.enter_context(patched(CAST_INSIDE_FORWARD, context=(parts, undo)))
        _clear_memoized(undo, model)
        _disable_dynamic_rope(undo, model)
        undo.enter_context(precomputed(model))
        undo.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        if not _open:
            device = next((p.device.type for p in model.parameters()), "")
            undo.enter_context(flash_attention.importable(device))
            undo.enter_context(flex_attention.whole_flex_attention())
            undo.enter_context(nested.whole_attention())
            _open.append(Assumptions())
            undo.callback(_open.clear)
            if "transformers" in sys.modules:
                undo.enter_context(patched(*METHODS, *HINTS, context=(_open[0],)))
                _replace_everywhere(undo, _open[0])
                undo.enter_context(patched(NO_RESULT_CACHE))
            undo.enter_context(without_padding(model, _open[0]))
        yield _open[0]


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Run compiled modules and functions uncompiled while the block runs, so that a tracer sees inside them."""
    # Whoever compiled something has imported this; importing it without need takes a second.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    import torch

    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", message="TorchLens: compiled model detected")
        yield


def _cast_and_restore(original: Any, parts: set[int], undo: ExitStack) -> Callable[..., Any]:
    def apply(self: nn.Module, fn: Callable[..., Any], *rest: Any, **more: Any) -> Any:
        if id(self._parameters) not in parts:
            return original(self, fn, *rest, **more)
        for part in self.modules():
            for tensors in (part._parameters, part._buffers):
                for key, before in tensors.items():
                    if before is not None and (cast := fn(before)) is not before:
                        tensors[key] = cast
                        undo.callback(_restore_cast, tensors, key, cast, before)
        return self

    return apply


def _restore_cast(tensors: dict[str, Any], key: str, cast: Any, before: Any) -> None:
    """Restore parameters and buffers that a cast replaced, unless an export has already restored them."""
    if tensors.get(key) is cast:
        tensors[key] = before


CAST_INSIDE_FORWARD: Final = Patch(
    "torch.nn:Module._apply",
    _cast_and_restore,
    "an export cannot change parameters; part.to(dtype) in a forward puts tensors in their place",
    _TEST,
)


def _set_training(modules: list[nn.Module], flag: bool) -> None:
    """Set ``training`` of each module directly: ``train()`` also sets children and may make a model merge weights."""
    for module in modules:
        module.training = flag


def _disable_dynamic_rope(undo: ExitStack, model: nn.Module) -> None:
    """Keep ``dynamic`` rotary embeddings from reading the largest position, whose value is unknown on meta.

    They compute other frequencies for positions beyond the trained context, and a run is not longer than that.
    """
    from unittest import mock

    for part in model.modules():
        kind = vars(part).get(_ROPE_TYPE)
        if kind == "dynamic":
            undo.enter_context(mock.patch.dict(vars(part), {_ROPE_TYPE: "default"}))
        elif isinstance(kind, dict) and "dynamic" in kind.values():
            static = {name: "default" if one == "dynamic" else one for name, one in kind.items()}
            undo.enter_context(mock.patch.dict(vars(part), {_ROPE_TYPE: static}))


def _clear_memoized(undo: ExitStack, model: nn.Module) -> None:
    """Replace memoized functions (``lru_cache``) of the model's Python modules by wrappers with empty caches.

    A tensor that one run made would enter the next without a producer, and one from an export has no values.
    """
    from unittest import mock

    classes = dict.fromkeys(cls for module in model.modules() for cls in type(module).__mro__)
    names = dict.fromkeys(cls.__module__ for cls in classes)
    before = StateSnapshot(undo, frozenset(names.keys() - {object.__module__}))
    before.module(model)
    for name in names:
        for owner in (sys.modules.get(name), *(cls for cls in classes if cls.__module__ == name)):
            for key, function in list(getattr(owner, "__dict__", {}).items()):
                if isinstance(function, functools._lru_cache_wrapper) and function.__module__ == name:
                    empty = functools.lru_cache(**function.cache_parameters())(function.__wrapped__)
                    undo.enter_context(mock.patch.object(owner, key, empty))
            if owner is not None:
                before.variables(owner)


def _replace_everywhere(undo: ExitStack, assumptions: Assumptions) -> None:
    """Replace functions of transformers in every Python module that imported them."""
    swaps: list[tuple[str, Any, Any]] = []
    for patch in FUNCTIONS:
        module, _, name = patch.target.partition(":")
        source = vars(sys.modules.get(module) or object)
        if name in source:
            swaps.append((name, source[name], patch.make(source[name], assumptions)))
    undo.callback(_swap, [(name, new, old) for name, old, new in swaps])
    _swap(swaps)


def _swap(swaps: list[tuple[str, Any, Any]]) -> None:
    """Replace the variable ``name`` by the new value in every Python module where it has the old value."""
    named = {name: (old, new) for name, old, new in swaps}
    for module in _modules_to_search():
        names = getattr(module, "__dict__", {})
        if named.keys().isdisjoint(names.keys()):
            continue
        for name in named.keys() & names.keys():
            old, new = named[name]
            if names[name] is old:
                names[name] = new


_lacking: Final[dict[int, weakref.ref[ModuleType]]] = {}
"""Modules of packages that import none of the replaced functions, by id; removed when the module is deleted."""
_searched: Final[dict[int, weakref.ref[ModuleType]]] = {}
"""Other modules, which are searched each time, by id: those with a replaced function, and those of no package."""


def _modules_to_search() -> list[Any]:
    """Return the Python modules that have, or may get, one of the replaced functions.

    Most of thousands are remembered to lack them: plain modules of packages. Other modules may be reloaded or written
    to, and one with a class of its own may import a function when it is first asked for it.
    """
    found = [module for module in list(sys.modules.values()) if id(module) not in _lacking]
    for module in found:
        if id(module) not in _searched and type(module) is ModuleType:
            if is_complete(module):
                _remember(module, _lacking if _NAMES.isdisjoint(vars(module)) else _searched)
            elif not is_installed(module):
                _remember(module, _searched)
    return found


def _remember(module: ModuleType, among: dict[int, weakref.ref[ModuleType]]) -> None:
    """Record a module by its id, until it is deleted and the id may be reused."""
    key = id(module)
    among[key] = weakref.ref(module, lambda _: among.pop(key, None))


def _mask_lacks_values(value: Any) -> bool:
    """Return whether a padding mask has no values, or is known to hide nothing."""
    from costproof.patches.input_values import KnownIntegers, lacks_values

    return isinstance(value, KnownIntegers) or lacks_values(value)


ReplacementFactory = Callable[[Callable[..., Any], Assumptions], Callable[..., Any]]
"""Function that makes a replacement from the original function and the assumptions."""


def _always(answer: bool | None) -> ReplacementFactory:
    return lambda original, assumptions: lambda *args, **kwargs: answer


def _unless_known(answer: bool | None, parameter: str) -> ReplacementFactory:
    """Return a factory of replacements that return ``answer`` if the mask ``parameter`` is a tensor without values."""

    def make(original: Callable[..., Any], assumptions: Assumptions) -> Callable[..., Any]:
        given = inspect.signature(original).bind

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _mask_lacks_values(given(*args, **kwargs).arguments.get(parameter)):
                return answer
            return original(*args, **kwargs)

        return call

    return make


def _unmasked(parameter: str, *, static: bool = False, skip: bool = False) -> ReplacementFactory:
    """Return a factory of replacements that call the original without its padding mask [B, S] if that has no values.

    Args:
        static: whether the function is a static method.
        skip: whether to return ``None`` instead of calling the function, if it makes a mask from the padding mask.
    """

    def make(original: Callable[..., Any], assumptions: Assumptions) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            mask = given.arguments.get(parameter)
            if mask is None or not _mask_lacks_values(mask) or mask.dim() != 2:
                return original(*args, **kwargs)
            assumptions[NO_PADDING] = None
            if skip:
                return None
            given.arguments[parameter] = None
            return original(*given.args, **given.kwargs)

        return staticmethod(call) if static else call

    return make


def _grouped_if_bfloat16(original: Callable[..., Any], assumptions: Assumptions) -> Callable[..., Any]:
    import torch

    @functools.wraps(original)
    def call(tokens: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
        if weight.dtype != torch.bfloat16 and _mask_lacks_values(weight):
            return False
        return original(tokens, weight, *args, **kwargs)

    return call


def _add_at_first_places(original: Callable[..., Any], assumptions: Assumptions) -> Callable[..., Any]:
    import torch

    @functools.wraps(original)
    def call(self: Any, hidden_states: Any, visual_pos_masks: Any, visual_embeds: Any) -> Any:
        if not (visual_pos_masks.is_meta or _mask_lacks_values(visual_pos_masks)):
            return original(self, hidden_states, visual_pos_masks, visual_embeds)
        hidden_states = hidden_states.clone()
        first = torch.arange(visual_embeds.shape[0], device=hidden_states.device)
        places = (first // hidden_states.shape[1], first % hidden_states.shape[1])
        hidden_states[places] = hidden_states[places] + visual_embeds.to(hidden_states.device, hidden_states.dtype)
        return hidden_states

    return call


_DEEPSTACK: Final = {
    "cohere_compass": "CohereCompassTextModel",
    "granite_docling": "GraniteDoclingTextModel",
    "qwen3_omni_moe": "Qwen3OmniMoeThinkerTextModel",
    "qwen3_vl": "Qwen3VLTextModel",
    "qwen3_vl_moe": "Qwen3VLMoeTextModel",
}
"""Decoder classes that receive features of several vision layers (DeepStack), by transformers' model type."""
METHODS: Final[tuple[Patch, ...]] = (
    LoadedPatch(
        "transformers.modeling_utils:PreTrainedModel.warn_if_padding_and_no_attention_mask",
        _always(None),
        "it looks for padding tokens among input ids without values, only to warn",
        _TEST,
    ),
    LoadedPatch(
        "transformers.modeling_attn_mask_utils:AttentionMaskConverter._ignore_causal_mask_sdpa",
        _unmasked("attention_mask", static=True),
        "it checks whether a padding mask hides anything",
        _TEST,
    ),
    *(
        LoadedPatch(
            f"transformers.models.{model}.modeling_{model}:{cls}._deepstack_process",
            _add_at_first_places,
            "it adds features where a mask is true; without values they are added at as many first places",
            "models/generic/test_zoo.py",
        )
        for model, cls in _DEEPSTACK.items()
    ),
)
HINTS: Final = (
    LoadedPatch(
        "torch._dynamo:mark_static_address",
        _always(None),
        "a hint for compilers that writes an attribute on tensors, which an export only imitates",
        _TEST,
    ),
)
NO_RESULT_CACHE: Final = LoadedPatch(
    "transformers.pytorch_utils:is_torchdynamo_compiling",
    lambda original: lambda *args, **kwargs: True,
    "unless compiled, functions memoize tensors, and those of one trace would enter the next without a producer",
    _TEST,
)
"""Patch against memoized tensors in transformers; installed last, as :data:`FUNCTIONS` has the function too."""


def _function(place: str, make: ReplacementFactory, reason: str) -> LoadedPatch:
    return LoadedPatch(f"transformers.{place}", make, reason, _TEST)


_NOT_TRACED: Final = "a traced model takes branches that a run does not take"
_MASK_VALUES: Final = "it checks whether a padding mask hides anything"
FUNCTIONS: Final = (
    _function("utils.import_utils:is_tracing", _always(False), _NOT_TRACED),
    _function("utils.import_utils:is_torchdynamo_compiling", _always(False), _NOT_TRACED),
    _function("utils.import_utils:is_torchdynamo_exporting", _always(False), _NOT_TRACED),
    _function(
        "utils.import_utils:torch_compilable_check",
        _unless_known(None, "cond"),
        "it checks a condition on values, which meta lacks",
    ),
    _function("masking_utils:_ignore_causal_mask_sdpa", _unmasked("padding_mask"), _MASK_VALUES),
    _function("masking_utils:_ignore_bidirectional_mask_sdpa", _unmasked("padding_mask"), _MASK_VALUES),
    _function("masking_utils:create_recurrent_attention_mask", _unmasked("attention_mask"), _MASK_VALUES),
    _function(
        "masking_utils:find_packed_sequence_indices",
        _unless_known(None, "position_ids"),
        "it checks by position values whether a row holds several sequences",
    ),
    _function(
        "modeling_attn_mask_utils:_prepare_4d_attention_mask_for_sdpa", _unmasked("mask", skip=True), _MASK_VALUES
    ),
    _function(
        "modeling_flash_attention_utils:_is_packed_sequence",
        _unless_known(False, "position_ids"),
        "it checks by position values whether a row holds several sequences",
    ),
    _function(
        "integrations.moe:_can_use_grouped_mm",
        _grouped_if_bfloat16,
        "shapes of grouped products are known for bfloat16 only; other dtypes use a custom operator of transformers",
    ),
)
"""Functions of transformers to replace in every module that imported them; see :func:`_replace_everywhere`."""
_NAMES: Final = frozenset(patch.target.partition(":")[2] for patch in FUNCTIONS)


class StateSnapshot:
    """Snapshot of a model's non-tensor state before a run, which an exit stack restores."""

    def __init__(self, undo: ExitStack, code: frozenset[str]) -> None:
        """Create an empty snapshot.

        Args:
            undo: exit stack that restores the state when it is closed.
            code: names of the Python modules whose functions and objects are searched.
        """
        self._undo, self._code = undo, code
        self._seen: dict[int, Any] = {}

    def variables(self, owner: Any) -> None:
        """Record the attributes of a Python module, class or object, and the values in them."""
        names = dict(vars(owner))
        self._undo.callback(_restore, names, vars(owner), partial(setattr, owner), partial(delattr, owner))
        for name, held in names.items():
            if not name.startswith("__"):
                self._value(held)

    def module(self, model: nn.Module) -> None:
        """Record non-tensor attributes and functions of all submodules; callers restore parameters and buffers."""
        from torch.nn import Module

        own = vars(Module())
        for part in model.modules():
            for name, held in vars(part).items():
                for value in held.values() if name in own and type(held) in _DICTS else (held,):
                    self._value(value, own_function=True)

    def _value(self, held: Any, *, own_function: bool = False) -> None:
        """Record the content of a container, of a function, or of an object whose class is in a searched Python module.

        Args:
            own_function: whether a function belongs to the model, whatever module defines it.
        """
        kind = type(held)  # not isinstance, to which lazy values of other packages answer by loading themselves
        inner: Callable[[Any], None]
        if kind in (staticmethod, classmethod):
            self._value(held.__func__)
            return
        if kind in _DICTS:
            inner = self._dict
        elif kind in _LISTS:
            inner = self._list
        elif kind is FunctionType and (own_function or held.__module__ in self._code):
            inner = self._function
        elif kind is partial and own_function:
            inner = self._partial
        elif (
            kind.__module__ in self._code and has_attribute(held, "__dict__") and not hasattr(held, "named_parameters")
        ):
            inner = self.variables
        else:
            return
        if id(held) not in self._seen:
            self._seen[id(held)] = held
            inner(held)

    def _dict(self, held: Any) -> None:
        before = dict(held)
        self._undo.callback(_restore, before, held, held.__setitem__, held.__delitem__)
        for value in before.values():
            self._value(value)

    def _list(self, held: MutableSequence[Any]) -> None:
        before = list(held)
        self._undo.callback(_restore_list, before, held)
        for value in before:
            self._value(value)

    def _function(self, function: FunctionType) -> None:
        ours = (function.__module__ or "").startswith(_OURS)  # our tracers collect tensors
        for cell in function.__closure__ or ():
            content = _cell_content(cell)
            if not ours:
                self._undo.callback(_restore_cell, cell, content)
            if not ours or type(content) in (FunctionType, partial):
                self._value(content, own_function=True)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), vars(function)):
            self._value(value)

    def _partial(self, held: partial[Any]) -> None:
        for value in (held.func, *held.args, *held.keywords.values()):
            self._value(value, own_function=True)


def _restore(
    before: Mapping[Any, Any], held: Mapping[Any, Any], put: Callable[[Any, Any], None], drop: Callable[[Any], None]
) -> None:
    for key, value in list(held.items()):
        if value is not before.get(key) and _has_tensor(value):
            if key in before:
                put(key, before[key])
            else:
                drop(key)


def _restore_list(before: list[Any], held: MutableSequence[Any]) -> None:
    """Restore a list if the run put a tensor into it."""
    known = {id(value) for value in before}
    if any(id(value) not in known and _has_tensor(value) for value in held):
        held.clear()
        held.extend(before)


def _restore_cell(cell: CellType, before: Any) -> None:
    now = _cell_content(cell)
    if now is before or not _has_tensor(now):
        return
    if before is _EMPTY:
        del cell.cell_contents
    else:
        cell.cell_contents = before


def _cell_content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _has_tensor(value: Any) -> bool:
    import torch
    from torch.utils._pytree import tree_leaves

    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value))
