"""Recognise a snapshot, import its code, build its model, and patch it so that it can run and be traced.

A folder is recognised by its files and ``config.json``, without running any code. It is imported as a package with a
private name, so that its relative imports work without the remote-code cache of transformers. Nothing is copied or
written, not even bytecode next to the files.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from costproof.foreign import contained
from costproof.ledger.errors import BadInput, Problems, first_line
from costproof.ledger.files import first_bytes, read_configuration
from costproof.ledger.progress import Progress
from costproof.ledger.run import RANDOM, RunOptions
from costproof.models.families.deepseek_ocr.checkpoint import placed
from costproof.models.families.deepseek_ocr.config import OcrConfig, parse_config
from costproof.models.target import require_device
from costproof.weights.loading import load, plan
from costproof.weights.random_values import fill_random

if TYPE_CHECKING:
    import torch
    from torch import nn


MODELING: Final = "modeling_deepseekocr"
CODE: Final = (f"{MODELING}.py", "deepencoder.py", "modeling_deepseekv2.py")
REQUIRED: Final = ("config.json", *CODE)
"""Required files of a snapshot; weights are not required, because runs can use random ones."""

_MOST_CODE: Final = 2**20
"""Largest file, in bytes, that is searched for imports; the largest real file has 84 thousand."""
_CLASS: Final = re.compile(MODELING + r"\.[A-Za-z_][A-Za-z0-9_]*")
WANTED: Final = "4.46.3"
"""Version of transformers that the published remote code needs: it imports ``LlamaFlashAttention2``."""
_DECORATION: Final = "torchvision"
"""Package that only the code's preprocessing needs; if missing, an empty module replaces it."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A folder of remote code and the content of its ``config.json``."""

    folder: str
    """Absolute path of the folder."""
    config: OcrConfig
    config_class: str
    """``module.Class`` of the configuration, from ``auto_map``."""
    model_class: str
    wants: str
    """Version of transformers that wrote the file; empty if unknown."""


def read_snapshot(folder: Path) -> Snapshot:
    """Read a snapshot folder without running its code.

    Raises:
        BadInput: there is no such folder, or it is not a snapshot of DeepSeek-OCR.
        Problems: its ``config.json`` cannot be used.
    """
    missing = [name for name in REQUIRED if not (folder / name).is_file()]
    missing += [name for name in imported(folder) if name not in missing and not _is_module(folder / name)]
    if missing:
        raise BadInput(
            "not a whole snapshot of DeepSeek-OCR", where=str(folder),
            expected="the remote code: " + ", ".join(REQUIRED) + ", and what these import from the same folder",
            got="no " + ", ".join(missing), fix="download all *.py files of the snapshot",
        )  # fmt: skip
    path = folder / "config.json"
    data = read_configuration(path)
    config = parse_config(data, where=str(path))
    assert isinstance(data, dict)  # or parse_config had refused it
    classes: Any = data.get("auto_map")
    known = classes if isinstance(classes, dict) else {}
    named: dict[str, Any] = {k: known.get(k) for k in ("AutoConfig", "AutoModel")}
    wrong = {k: repr(v)[:60] for k, v in named.items() if not isinstance(v, str) or not _CLASS.fullmatch(v)}
    if wrong:
        what, expected = "this must name a class of the remote code", f"{MODELING}.CLASS"
        problems = [BadInput(what, where=f"$.auto_map.{k}", expected=expected, got=v) for k, v in wrong.items()]
        raise Problems(f"the configuration {path} cannot be used", problems)
    wants = data.get("transformers_version")
    return Snapshot(
        str(folder.resolve()), config, named["AutoConfig"], named["AutoModel"], wants if isinstance(wants, str) else ""
    )


def imported(folder: Path) -> tuple[str, ...]:
    """Return the names of the local files that the remote code imports, directly or indirectly."""
    found: dict[str, None] = {}
    todo = list(CODE)
    while todo:
        path = folder / todo.pop()
        try:
            nodes = list(ast.walk(ast.parse(first_bytes(path, _MOST_CODE))))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # not there, or no Python: told where it is needed
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                modules = [node.module] if node.module else [alias.name for alias in node.names]
                new = [f"{m.partition('.')[0]}.py" for m in modules]
                todo += [name for name in new if name not in found]
                found.update(dict.fromkeys(new))
    return tuple(sorted(found))


def _is_module(file: Path) -> bool:
    return file.is_file() or file.with_suffix("").is_dir()


def load_code(snapshot: Snapshot) -> ModuleType:
    """Import the modelling module of the snapshot, once per folder.

    Raises:
        BadInput: the installed packages cannot run it.
    """
    folder = Path(snapshot.folder)
    package = "costproof_snapshot_" + hashlib.sha256(snapshot.folder.encode()).hexdigest()[:12]
    name = f"{package}.{snapshot.model_class.split('.')[0]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_loader(package, loader=None, is_package=True)
    assert spec is not None
    spec.submodule_search_locations = [str(folder)]
    sys.modules[package] = importlib.util.module_from_spec(spec)
    try:
        with _importing(), quiet():
            return importlib.import_module(name)
    except (ImportError, AttributeError) as error:
        for loaded in [m for m in sys.modules if m == package or m.startswith(package + ".")]:
            del sys.modules[loaded]
        raise cannot_run(snapshot, error) from error


def cannot_run(snapshot: Snapshot, error: Exception) -> BadInput:
    """Return the error for a snapshot that the installed packages cannot run."""
    from costproof.ledger.environment import installed

    return BadInput(
        "the installed packages cannot run this snapshot",
        where=snapshot.folder,
        expected=f"transformers {snapshot.wants or WANTED}, einops, addict, easydict, requests, Pillow, tqdm",
        got=f"transformers {installed('transformers')}: {first_line(error)}",
        fix="make vendor-env, then .venv-vendor/bin/costproof report FOLDER --trust-remote-code",
    )


def build_vendor(snapshot: Snapshot, dtype: str, device: str) -> nn.Module:
    """Return the model in eval mode, with uninitialised parameters in ``dtype``; buffers keep their own dtype.

    Raises:
        BadInput: the installed packages cannot run the code, or it failed or ended the program.
    """
    with contained("the code of the snapshot failed", snapshot.folder, root=snapshot.folder):
        import torch

        code = load_code(snapshot)
        data = json.loads((Path(snapshot.folder) / "config.json").read_text(encoding="utf-8"))
        for part in (data, data["language_config"]):
            # The decoder may be cut; the code reads one of the two places, and both have the key where it stands.
            if "num_hidden_layers" in part:
                part["num_hidden_layers"] = snapshot.config.text.layers
        before = torch.get_default_dtype()
        try:
            if importlib.util.find_spec("transformers.initialization"):
                from transformers.initialization import no_init_weights
            else:  # before transformers 5
                from transformers.modeling_utils import no_init_weights
            torch.set_default_dtype(getattr(torch, dtype))
            with torch.device(device), no_init_weights(), quiet():
                config = getattr(code, snapshot.config_class.split(".")[1])(**data)
                config._attn_implementation = "eager"
                model: nn.Module = getattr(code, snapshot.model_class.split(".")[1])(config)
        except (ImportError, AttributeError) as error:
            raise cannot_run(snapshot, error) from error
        finally:
            torch.set_default_dtype(before)
        return model.eval().requires_grad_(False)


def build_with_values(
    snapshot: Snapshot, dtype: str, options: RunOptions, progress: Progress
) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the model on the device of the run with random or published weights, and notes about the changes.

    Raises:
        BadInput: as :func:`build_vendor`, or there is no checkpoint.
        Problems: the checkpoint does not fit the model.
    """
    require_device(options.device)
    if options.weights == RANDOM:
        model = build_vendor(snapshot, dtype, options.device)
        (note,) = fill_random(model, options.seed, progress)
        return model, (f"the vendor's code with {note}",)
    # A checkpoint that does not fit is told before a byte is allocated.
    found = plan(options.weights, build_vendor(snapshot, dtype, "meta"), placed, cut=options.layers is not None)
    model = build_vendor(snapshot, dtype, options.device)
    return model, ("the vendor's code with the weights of a checkpoint", *load(found, model, progress))


@contextmanager
def _importing() -> Iterator[None]:
    """Disable bytecode files, and replace missing preprocessing packages by empty modules, while the block runs."""
    absent: list[str] = []
    with mock.patch.object(sys, "dont_write_bytecode", True):
        try:
            if not _importable(_DECORATION):
                _remember_absence(_DECORATION)
                absent = _stand_in(_DECORATION)
            yield
        finally:
            for name in absent:
                del sys.modules[name]


def _remember_absence(name: str) -> None:
    """Let transformers memoize that a package is absent, before an empty module replaces the package."""
    from transformers.utils import import_utils

    for function in [f for n, f in vars(import_utils).items() if n.startswith(f"is_{name}") and callable(f)]:
        with suppress(TypeError):  # one that takes arguments remembers nothing
            function()


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception:  # a build for another torch raises RuntimeError
        for loaded in [m for m in sys.modules if m == name or m.startswith(name + ".")]:
            del sys.modules[loaded]
        return False
    return True


def _stand_in(name: str) -> list[str]:
    names = [name, f"{name}.transforms", f"{name}.transforms.functional"]
    for path in names:
        module = mock.MagicMock(name=path)
        module.__path__, module.__spec__, module.__name__ = [], importlib.util.spec_from_loader(path, None), path
        sys.modules[path] = module
    return names


@dataclass(frozen=True, slots=True)
class VendorPatch:
    """Replacement of a module attribute while the vendor's code runs."""

    name: str
    why: str
    target: object
    attribute: str
    replacement: Any
    needed: bool
    """Whether the code cannot run without this patch; other patches only expose operators to a tracer."""


def patches_for(model: nn.Module) -> tuple[VendorPatch, ...]:
    """Return the patches that a run of this model needs on its device."""
    import torch

    found = []
    if next(model.parameters()).device.type != "cuda":
        why = "the code moves the image mask to CUDA; it stays where the model is"
        found.append(VendorPatch("torch.Tensor.cuda", why, torch.Tensor, "cuda", _stays, needed=True))
    why = "TorchScript hides its operators from a tracer; the same function runs as Python"
    for module in _modules_of(model):
        for name, value in sorted(vars(module).items()):
            plain = getattr(value, "_torchdynamo_inline", None)
            if isinstance(value, torch.jit.ScriptFunction) and callable(plain):
                place = f"{module.__name__.split('.', 1)[-1]}.{name}"
                found.append(VendorPatch(place, why, module, name, plain, needed=False))
    return tuple(found)


@contextmanager
def patched(patches: tuple[VendorPatch, ...]) -> Iterator[None]:
    """Apply patches while the block runs."""
    with ExitStack() as stack:
        stack.enter_context(quiet())
        for patch in patches:
            stack.enter_context(mock.patch.object(patch.target, patch.attribute, patch.replacement))
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress transformers' warnings to the authors of remote code, unless ``TRANSFORMERS_VERBOSITY`` is set."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    if "TRANSFORMERS_VERBOSITY" not in os.environ:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _modules_of(model: nn.Module) -> list[Any]:
    """Return the modules of the snapshot that define the classes of the model."""
    package = type(model).__module__.rpartition(".")[0]
    names = {type(m).__module__ for m in model.modules()}
    return [sys.modules[n] for n in sorted(names) if n.startswith(package + ".") and n in sys.modules]


def _stays(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return self
