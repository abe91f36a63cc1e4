"""What is put around PyTorch while a module runs, for a recorder to see what aten ops do not tell.

Which module an op belongs to, functions that are recorded whole, autograd's own functions,
checkpointed calls, detaching, and ops that one call from Python issues together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from traincast.ingest.pytorch.composites import COMPOSITES, Composite
from traincast.ingest.pytorch.recorder import Recorder, is_tensor


@contextlib.contextmanager
def watching(recorder: Recorder) -> Iterator[None]:
    """Let a recorder see everything that runs inside."""
    hooks = torch.nn.modules.module
    before = hooks.register_module_forward_pre_hook(recorder.enter)
    after = hooks.register_module_forward_hook(recorder.leave, always_call=True)
    try:
        with contextlib.ExitStack() as stack:
            for composite in COMPOSITES:
                stack.enter_context(_whole(recorder, composite))
            for around in (_functions, _checkpoints, _detaching):
                stack.enter_context(around(recorder))
            stack.enter_context(_Calls(recorder))
            stack.enter_context(recorder)
            yield
    finally:
        before.remove()
        after.remove()


@contextlib.contextmanager
def _put(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put something in place of an attribute, an inherited one too, for a while."""
    own = vars(owner)
    before = [own[name]] if name in own else []
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before:
            setattr(owner, name, before[0])
        else:
            delattr(owner, name)


@contextlib.contextmanager
def _whole(recorder: Recorder, composite: Composite) -> Iterator[None]:
    original = getattr(composite.owner, composite.name)
    plain = composite.stand_in(original)

    def run(*args: Any, **kwargs: Any) -> Any:
        if recorder.paused or any(map(_mapped, (*args, *kwargs.values()))):
            return original(*args, **kwargs)
        with recorder.whole():
            out = plain(*args, **kwargs)
        if "input" in kwargs:
            args, kwargs = (
                (kwargs["input"], *args),
                {k: v for k, v in kwargs.items() if k != "input"},
            )
        if composite.capture(recorder, out, *args, **kwargs):
            return out
        return original(*args, **kwargs)

    with _put(composite.owner, composite.name, run):
        yield


def _mapped(value: Any) -> bool:
    """Tell whether a value is a tensor as `vmap` and `torch.func.grad` show it to a function."""
    return is_tensor(value) and torch._C._functorch.is_functorch_wrapped_tensor(value)


@contextlib.contextmanager
def _functions(recorder: Recorder) -> Iterator[None]:
    """Know of autograd functions: their forward runs without gradients, and yet has one."""
    original = vars(torch.autograd.Function)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with recorder.differentiable():
            return original.__func__(cls, *args, **kwargs)

    with _put(torch.autograd.Function, "apply", classmethod(apply)):
        yield


@contextlib.contextmanager
def _checkpoints(recorder: Recorder) -> Iterator[None]:
    """Know of calls of `torch.utils.checkpoint`, by whatever name they were imported."""
    forward = checkpoint.CheckpointFunction.forward

    def around(*_: Any, **__: Any) -> Iterator[None]:
        with recorder.checkpointed(reentrant=False):
            yield

    def inside(*args: Any) -> Any:
        with recorder.checkpointed(reentrant=True):
            return forward(*args)

    with (
        _put(checkpoint, "_checkpoint_without_reentrant_generator", around),
        _put(checkpoint.CheckpointFunction, "forward", staticmethod(inside)),
    ):
        yield


@contextlib.contextmanager
def _detaching(recorder: Recorder) -> Iterator[None]:
    """Know of detaching that the module asks for: autograd does so too, for its own sake."""
    detach, data = torch.Tensor.detach, torch.Tensor.data

    def asked(tensor: Any) -> Any:
        with recorder.detaching():
            return detach(tensor)

    def get(tensor: Any) -> Any:
        with recorder.detaching():
            return data.__get__(tensor)

    whole = property(get, data.__set__)
    with _put(torch.Tensor, "detach", asked), _put(torch.Tensor, "data", whole):
        yield


class _Calls(TorchFunctionMode):  # type: ignore[misc]
    """Tells a recorder where one call from Python issues several ops from C++, as an einsum does.

    What is written in Python itself issues each op by a call of its own, but for the thin covers of
    `torch.functional`.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, FunctionType) and func.__module__ != "torch.functional":
            return func(*args, **kwargs)
        with self._recorder.one_call():
            return func(*args, **kwargs)
