"""Records what a module runs, one entry an aten op, on tensors that have shapes but no data.

Two sources feed one list: a dispatch mode sees every aten op below autograd, so whatever the
module does is seen; and a few composite functions (linear, attention, dropout, recurrent layers,
cross-entropy) are recorded whole, since a CPU would expand them in another way than a GPU. So is
batch normalisation, for speed.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from traincast.graph import Attr
from traincast.ingest.pytorch.trace import DTYPES, RawOp, RawTensor, Trace

_SIDE = frozenset({"view", "copy", "fill"})
"""Kinds that never stand for their whole module, so never take its bare path as name."""


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Turns aten calls into a Trace. Use as a context around the forward pass and the loss."""

    def __init__(self, module: torch.nn.Module, float_dtype: torch.dtype) -> None:
        super().__init__()
        self.trace = Trace()
        self._float = float_dtype
        self._names: dict[int, str] = {}
        self._tensors: dict[str, weakref.ref[torch.Tensor]] = {}
        self._others: list[weakref.ref[torch.Tensor]] = []
        self._memory: dict[int, str] = {}
        self._held = 0
        self._detaching = False
        self._views: dict[str, tuple[str, dict[str, Attr]]] = {}
        self._later: dict[str, str] = {}
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}
        self._paused = 0
        self._functions = 0
        self._issued: int | None = None
        self._live: set[str] = set()
        self._stack: list[str] = []
        self._calls = 0
        self._call: dict[str, Attr] = {}
        self._paths = {id(m): path for path, m in module.named_modules()}
        for path, parameter in module.named_parameters():
            name = self.declare(parameter, path, "parameter", parameter.requires_grad)
            if parameter.requires_grad:
                self._live.add(name)
        for path, buffer in module.named_buffers():
            self.declare(buffer, path, "buffer")

    def declare(self, tensor: torch.Tensor, name: str, role: str, trainable: bool = True) -> str:
        """Give a tensor a name before anything runs."""
        if id(tensor) in self._names:
            return self._names[id(tensor)]
        return self._add(tensor, self._free(name), role, trainable)

    def _free(self, name: str) -> str:
        if name not in self._taken:
            self._taken.add(name)
            return name
        count = self._counts.get(name, 0) + 1
        while f"{name}_{count}" in self._taken:
            count += 1
        self._counts[name] = count
        self._taken.add(f"{name}_{count}")
        return f"{name}_{count}"

    def _add(self, tensor: torch.Tensor, name: str, role: str, trainable: bool = True) -> str:
        dtype = "float" if tensor.dtype == self._float else DTYPES.get(tensor.dtype, "float32")
        shape = tuple(int(s) for s in tensor.shape)
        self.trace.tensors[name] = RawTensor(name, shape, dtype, role, trainable)
        size = 0
        if role == "activation" and id(tensor) not in self._names:
            size = math.prod(shape) * tensor.element_size()
        self._tensors[name] = self._call_it(tensor, name, size)
        memory = _memory_of(tensor)
        whole = self._tensors.get(self._memory.get(memory, ""))
        whole = whole() if whole else None
        if memory and (whole is None or whole.numel() == tensor.numel()):
            self._memory[memory] = name
        return name

    def _call_it(self, tensor: torch.Tensor, name: str, size: int) -> weakref.ref[torch.Tensor]:
        """Give a tensor a name for as long as it lives; return a reference that has to be kept."""
        key = id(tensor)
        self._names[key] = name
        self._held += size
        self.trace.held = max(self.trace.held, self._held)

        def forget(_: Any) -> None:
            self._names.pop(key, None)  # another tensor may come to have this id
            self._held -= size

        return weakref.ref(tensor, forget)

    def name_of(self, tensor: torch.Tensor) -> str:
        """Return a tensor's name; one that nothing recorded made is a constant.

        What autograd hands to a gradient within the forward pass, such as the turned weight of a
        linear layer, may be a tensor that was never met over memory that was.
        """
        name = self._names.get(id(tensor))
        if name:
            return name
        same = self._memory.get(_memory_of(tensor), "")
        met = self._tensors[same]() if same else None
        if met is None or met.numel() != tensor.numel():
            return self._add(tensor, self._free("constant"), "buffer")
        turned = tensor.dim() == 2 and tensor.shape == met.shape[::-1]
        attrs: dict[str, Attr] = {"fn": "permute" if turned else "reshape", "implied": True}
        if turned:
            attrs["order"] = (1, 0)
        name = self._add(tensor, self._free(f"{same}.again"), "activation")
        self._views[name] = (same, attrs)
        if same in self._live:
            self._live.add(name)
        layer = self._stack[-1] if self._stack else ""
        self.trace.ops.append(RawOp(name, "view", (same,), (name,), {**attrs, **self._call}, layer))
        return name

    def base_of(self, tensor: torch.Tensor) -> tuple[str, tuple[str, ...]]:
        """Return the parameter or value that a tensor views, and the views on the way to it."""
        name, steps = self.name_of(tensor), []
        while name in self._views:
            name, attrs = self._views[name]
            steps.append(str(attrs["fn"]))
        return name, tuple(steps)

    def role_of(self, name: str) -> str:
        """Return the role of a named tensor."""
        return self.trace.tensors[name].role

    @property
    def _differentiating(self) -> bool:
        return torch.is_grad_enabled() or self._functions > 0

    def _stays(self, name: str) -> bool:
        """Tell whether autograd takes a tensor that is changed in place for what it was.

        A parameter that follows a moving average, a norm that is clamped without a gradient.
        """
        if self.role_of(name) == "parameter":
            return True
        return name in self._live and not self._differentiating

    def last(self) -> RawOp | None:
        """Return the op recorded last."""
        return self.trace.ops[-1] if self.trace.ops else None

    def add(
        self,
        kind: str,
        inputs: Sequence[torch.Tensor | str],
        outputs: Sequence[torch.Tensor],
        attrs: dict[str, Attr] | None = None,
        label: str = "",
    ) -> RawOp:
        """Record one op; outputs that are inputs too were changed in place and get a new name."""
        ins = tuple(x if isinstance(x, str) else self.name_of(x) for x in inputs)
        layer = self._stack[-1] if self._stack else ""
        own, attrs = dict(attrs or {}), {**(attrs or {}), **self._call}
        fn = label or str(attrs.get("fn", kind))
        main = kind not in _SIDE and outputs[0].is_floating_point()
        name = layer if layer and main and layer not in self._taken else f"{layer}.{fn}".strip(".")
        name = self._free(name)
        many = len(outputs) > 1
        updated = {id(t): n for t, n in zip(inputs, ins, strict=True) if self._stays(n)}
        before = [self._names.get(id(t), "") for t in outputs]
        outs = tuple(
            self._add(t, self._free(f"{name}:{i}" if many else f"{name}:out"), "activation")
            for i, t in enumerate(outputs)
        )
        for tensor in outputs:
            if id(tensor) in updated:
                self._names[id(tensor)] = updated[id(tensor)]
        if self._issued is not None:
            if self._issued:
                attrs["inner"] = True
            self._issued += 1
        op = RawOp(name, kind, ins, outs, attrs, layer)
        self.trace.ops.append(op)
        if kind == "view":
            for out in outs:
                self._views[out] = (ins[0], own)
        if not self._live.isdisjoint(ins):
            self._live.update(outs)
            if kind != "view" and not self._differentiating:
                self._stop([t for t in outputs if id(t) not in updated], name, layer)
            elif kind != "view":
                self._write(op, before)
        return op

    def _write(self, op: RawOp, before: Sequence[str]) -> None:
        """Let what is read of a tensor depend on what was written in place into a part of it.

        `out[:, t] = h` changes a view alone; a gradient comes back from all of `out`.
        """
        for written, part in zip(before, op.outputs, strict=True):
            views = [written]
            while self._views.get(views[-1], ("", {"fn": "detach"}))[1]["fn"] != "detach":
                views.append(self._views[views[-1]][0])
            whole = views.pop()
            if not views or self.role_of(whole) == "parameter" or self._gone(whole):
                continue
            if op.kind == "copy" and self._elements(part) < self._elements(whole):
                op.attrs["part"] = True
            # Arithmetic in place depends on the whole by the view that it reads.
            own = (part,) if written in op.inputs else (self._newest(whole), part)
            whole = self._again("copy", own, {"fn": "written"}, whole)
            # The part is a view of that from now on, as is what lies between: a reshaped buffer.
            for view in reversed([v for v in views if not self._gone(v)]):
                attrs = self._views[view][1]
                fn = {"split": "slice", "unbind": "select"}.get(str(attrs["fn"]), attrs["fn"])
                attrs = {**attrs, "fn": fn, "implied": True}
                whole, above = self._again("view", (whole,), attrs, view), whole
                self._views[whole] = (above, attrs)

    def _elements(self, name: str) -> int:
        return math.prod(self.trace.tensors[name].shape)

    def _gone(self, name: str) -> bool:
        return self._tensors[self._newest(name)]() is None

    def _newest(self, name: str) -> str:
        while name in self._later:
            name = self._later[name]
        return name

    def _again(self, kind: str, inputs: tuple[str, ...], attrs: dict[str, Attr], name: str) -> str:
        """Give a tensor the new name of its new contents, and return that."""
        newest = self._newest(name)
        tensor = self._tensors[newest]()
        assert tensor is not None
        made = self._add(tensor, self._free(f"{name}.written"), "activation")
        self._later[newest] = made
        self._live.add(made)
        layer = self._stack[-1] if self._stack else ""
        self.trace.ops.append(RawOp(made, kind, inputs, (made,), {**attrs, **self._call}, layer))
        return made

    def _stop(self, outputs: Sequence[torch.Tensor], name: str, layer: str) -> None:
        """Let no gradient flow into what was computed without one: a teacher, a target."""
        for tensor in outputs:
            if tensor.is_floating_point():
                before = self._names[id(tensor)]
                after = self._add(tensor, self._free(f"{name}.detach"), "activation")
                view = {"fn": "detach", **self._call}
                self.trace.ops.append(RawOp(after, "view", (before,), (after,), {**view}, layer))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op and record it."""
        from traincast.ingest.pytorch.aten import record

        if func is _DEVICE:  # asked for several times an op, so answered the short way
            fake = args[0]
            return func(fake) if fake.fake_mode.in_kernel_invocation else fake.fake_device
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is _DETACH and not self._detaching:
            # Autograd keeps a result: the gradient within a forward pass flows through it.
            self._others.append(self._call_it(out, self.name_of(args[0]), 0))
        elif not self._paused and func.namespace != "prim":
            record(self, func, args, kwargs, [t for t in tree_flatten(out)[0] if is_tensor(t)])
        return out

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Record nothing of what runs inside."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextlib.contextmanager
    def one_call(self) -> Iterator[None]:
        """Mark what runs inside as issued by one call from Python, all but its first op."""
        self._issued = 0
        try:
            yield
        finally:
            self._issued = None

    @contextlib.contextmanager
    def checkpointed(self, *, reentrant: bool) -> Iterator[None]:
        """Mark what runs inside as run again in the backward pass, instead of kept for it."""
        if self._call:  # the outer call is run again whole
            yield
            return
        self._calls += 1
        self._call = {"checkpoint": self._calls}
        if reentrant:
            self._call["reentrant"] = True
        try:
            yield
        finally:
            self._call = {}

    @contextlib.contextmanager
    def differentiable(self) -> Iterator[None]:
        """Take what runs inside for differentiable, although it runs without gradients."""
        more = int(torch.is_grad_enabled())
        self._functions += more
        try:
            yield
        finally:
            self._functions -= more

    @contextlib.contextmanager
    def detaching(self) -> Iterator[None]:
        """Take detaching inside for the module's own."""
        before, self._detaching = self._detaching, True
        try:
            yield
        finally:
            self._detaching = before

    @property
    def paused(self) -> bool:
        """Whether nothing is recorded."""
        return self._paused > 0

    def enter(self, module: torch.nn.Module, _: Any) -> None:
        """Note that a module begins."""
        path = self._paths.get(id(module))
        self._stack.append(path if path is not None else self._stack[-1] if self._stack else "")

    def leave(self, module: torch.nn.Module, _args: Any, _out: Any) -> None:
        """Note that it ends."""
        self._stack.pop()


def _memory_of(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:  # tensors that stand for others have none
        return 0


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


_DEVICE = torch.ops.prim.device.default
_DETACH = torch.ops.aten.detach.default
