"""List all patches of torch, transformers and TorchLens. Importing this module imports none of these packages."""

from __future__ import annotations

from typing import Final

from costproof.patches import export, flash_attention, inference, tensor, torchlens
from costproof.patches.patch import Patch

PATCHES: Final[tuple[Patch, ...]] = (
    *tensor.SPLIT_INDEXING, *tensor.STACK_INDEX_ROWS, *tensor.AUTOCAST, *tensor.REFUSE_GRADIENTS, *tensor.JIT_ON_META,
    tensor.READ_VALUES, *tensor.TO_NUMPY, tensor.EINSUM, *tensor.KNOWN_INTEGERS, tensor.SELECT_ALL_ROWS,
    *tensor.ROW_COUNTS,
    export.NO_STACK_TRACES, export.NO_TENSOR_METADATA, export.NO_FAKE_TENSOR_CACHE, *export.SHAPES_OF_RESULTS,
    *export.QUIET_EXPORT, *export.CONCRETE_VALUES,
    torchlens.SET_DIRECTLY, torchlens.KEEP_COMPILER_TABLES, torchlens.KEEP_SEARCHED_MODULES,
    torchlens.FIND_NAMESPACES_ONCE,
    *torchlens.SKIP_UNUSED_WORK, *torchlens.ASK_EVERY_STORAGE,
    torchlens.LEAVE_NO_METHODS, torchlens.KEEP_VIEW_LABELS, *torchlens.WHOLE_OPERATORS, *torchlens.KEEP_DEAD_CODE,
    inference.CAST_INSIDE_FORWARD, *inference.METHODS, *inference.HINTS, *inference.FUNCTIONS,
    inference.NO_RESULT_CACHE,
    *flash_attention.PATCHES,
)  # fmt: skip
"""Each patch that can be installed, in no particular order."""
