"""Why a module cannot be traced, in words that name the line of the model's own code.

IngestError
├── ValuesError     forward looks at the values of a tensor; there are none on fake tensors
└── SizesError      other ops, or sizes that are no simple function, at other sizes of the input
    ├── BatchError      at another batch
    └── LengthError     at another sequence length
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import torch

from traincast.errors import IngestError


class ValuesError(IngestError):
    """A forward pass that cannot run on fake tensors, since these have no values."""


class SizesError(IngestError):
    """A module that one graph cannot describe at every size of its input."""


class BatchError(SizesError):
    """A module that runs other ops at other batches."""


class LengthError(SizesError):
    """A module that runs other ops at other sequence lengths."""


_LOOKS = frozenset(
    {"DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode"}
)
_FAKE = ("torch._subclasses.", "torch.fx.experimental.symbolic_shapes")
_WITHOUT_DATA = (
    "is not supported for tensor subclasses",
    "Cannot access data pointer",
    "data is not allocated yet",
    "Tensor.item() cannot be called",
    "on meta tensors",
    "FakeTensor",
    "unrecognized data layout",
)


def needs_values(error: BaseException) -> bool:
    """Tell whether a failure comes from tensors having no values, rather than from the model."""
    kind = type(error)
    said = str(error)
    return (
        kind.__name__ in _LOOKS
        or kind.__module__.startswith(_FAKE)
        or isinstance(error, NotImplementedError)
        or any(text in said for text in _WITHOUT_DATA)
    )


def explain(reference: str, error: BaseException, doing: str) -> str:
    """Return a message that names the line of the model's own code at which it failed."""
    at = _own_line(error)
    kind = type(error).__name__
    if kind in _LOOKS:
        return (
            f"{reference}: {doing} needs the values of a tensor{at}, and there are no values "
            "before training; replace .item(), .tolist(), nonzero or a Python `if` on data by "
            "tensor operations, or by a constructor argument"
        )
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    text = said.strip().rstrip(".").splitlines()
    return f"{reference}: {doing} failed{at}: {kind}: {text[0] if text else 'no message'}"


def _own_line(error: BaseException) -> str:
    """Return ` at FILE:LINE (code)`: in the user's own files where the error went through them."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno} ({(error.text or '').strip()})"
    frames = traceback.extract_tb(error.__traceback__)
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")
    outside = [f for f in frames if not f.filename.startswith(ours)]
    libraries = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = tuple(sysconfig.get_path(library) for library in libraries)
    own = [f for f in outside if not f.filename.startswith(installed)] or outside
    return f" at {own[-1].filename}:{own[-1].lineno} ({own[-1].line})" if own else ""
