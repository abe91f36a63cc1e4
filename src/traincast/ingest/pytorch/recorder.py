"""Records what a module runs, one entry an aten op, on tensors that have shapes but no data.

Two sources feed one list: a dispatch mode sees every aten op below autograd, so whatever the
module does is seen; and a few composite functions (linear, attention, dropout, recurrent layers,
cross-entropy) are recorded whole, since a CPU would expand them in another way than a GPU. So is
batch normalisation, for speed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from traincast.graph import Attr

_DTYPES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
    torch.complex64: "complex64",
}


_SIDE = frozenset({"view", "copy", "fill"})
"""Kinds that never stand for their whole module, so never take its bare path as name."""


@dataclass(slots=True)
class RawTensor:
    """A tensor met in a trace, with concrete lengths."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    trainable: bool = True


@dataclass(slots=True)
class RawOp:
    """An op met in a trace."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Attr]
    layer: str


@dataclass(slots=True)
class Trace:
    """One run of a module at one batch and sequence length."""

    ops: list[RawOp] = field(default_factory=list)
    tensors: dict[str, RawTensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    loss: str = ""


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Turns aten calls into a Trace. Use as a context around the forward pass and the loss."""

    def __init__(self, module: torch.nn.Module, float_dtype: torch.dtype) -> None:
        super().__init__()
        self.trace = Trace()
        self._float = float_dtype
        self._names: dict[int, str] = {}
        self._alive: list[Any] = []
        self._views: dict[str, tuple[str, str]] = {}
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}
        self._paused = 0
        self._stack: list[str] = []
        self._paths = {id(m): path for path, m in module.named_modules()}
        for path, parameter in module.named_parameters():
            self.declare(parameter, path, "parameter", parameter.requires_grad)
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
        dtype = "float" if tensor.dtype == self._float else _DTYPES.get(tensor.dtype, "float32")
        shape = tuple(int(s) for s in tensor.shape)
        self.trace.tensors[name] = RawTensor(name, shape, dtype, role, trainable)
        self._names[id(tensor)] = name
        self._alive.append(tensor)
        return name

    def name_of(self, tensor: torch.Tensor) -> str:
        """Return a tensor's name; one that nothing recorded made is a constant."""
        name = self._names.get(id(tensor))
        return name if name else self._add(tensor, self._free("constant"), "buffer")

    def base_of(self, tensor: torch.Tensor) -> tuple[str, tuple[str, ...]]:
        """Return the parameter or value that a tensor views, and the views on the way to it."""
        name, steps = self.name_of(tensor), []
        while name in self._views:
            name, step = self._views[name]
            steps.append(step)
        return name, tuple(steps)

    def role_of(self, name: str) -> str:
        """Return the role of a named tensor."""
        return self.trace.tensors[name].role

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
        attrs = dict(attrs or {})
        fn = label or str(attrs.get("fn", kind))
        main = kind not in _SIDE and outputs[0].is_floating_point()
        name = layer if layer and main and layer not in self._taken else f"{layer}.{fn}".strip(".")
        name = self._free(name)
        many = len(outputs) > 1
        outs = tuple(
            self._add(t, self._free(f"{name}:{i}" if many else f"{name}:out"), "activation")
            for i, t in enumerate(outputs)
        )
        op = RawOp(name, kind, ins, outs, attrs, layer)
        self.trace.ops.append(op)
        if kind == "view":
            for out in outs:
                self._views[out] = (ins[0], str(attrs["fn"]))
        return op

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op and record it."""
        from traincast.ingest.pytorch.aten import record

        if func is _DEVICE:  # asked for several times an op, so answered the short way
            fake = args[0]
            return func(fake) if fake.fake_mode.in_kernel_invocation else fake.fake_device
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not self._paused and func.namespace != "prim":
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
    def watching(self) -> Iterator[Recorder]:
        """Record ops, composite functions and the module that each op belongs to."""
        hooks = torch.nn.modules.module
        before = hooks.register_module_forward_pre_hook(self._enter)
        after = hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            with contextlib.ExitStack() as stack:
                for composite in _COMPOSITES:
                    stack.enter_context(self._patched(composite))
                with self:
                    yield self
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        path = self._paths.get(id(module))
        self._stack.append(path if path is not None else self._stack[-1] if self._stack else "")

    def _leave(self, module: torch.nn.Module, _args: Any, _out: Any) -> None:
        self._stack.pop()

    @contextlib.contextmanager
    def _patched(self, composite: _Composite) -> Iterator[None]:
        owner, name, capture = composite.owner, composite.name, composite.capture
        original = getattr(owner, name)
        plain = composite.stand_in(original)

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._paused:
                return original(*args, **kwargs)
            with self.whole():
                out = plain(*args, **kwargs)
            if "input" in kwargs:
                args, kwargs = (
                    (kwargs["input"], *args),
                    {k: v for k, v in kwargs.items() if k != "input"},
                )
            if capture(self, out, *args, **kwargs):
                return out
            return original(*args, **kwargs)

        setattr(owner, name, run)
        try:
            yield
        finally:
            setattr(owner, name, original)


def _without_dropout(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Return attention that ignores its dropout.

    With dropout a CPU takes another path than a GPU, and leaves its result in another memory order.
    """

    def run(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **kwargs: Any,
    ) -> Any:
        return attention(query, key, value, attn_mask, 0.0, is_causal, **kwargs)

    return run


def _shape_alone(batch_norm: Callable[..., Any]) -> Callable[..., Any]:
    """Return batch normalisation that only makes a tensor of the right form.

    On fake tensors PyTorch takes it apart into a dozen ops, which cost more than all others of a
    convolutional network together. Whatever is out of the ordinary still goes that way.
    """

    def run(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, *rest: Any) -> Any:
        lengths = {tuple(t.shape) for t in (weight, bias, mean, variance) if t is not None}
        plain = isinstance(x, FakeTensor) and x.requires_grad and x.dim() > 1
        if plain and lengths <= {(x.shape[1],)}:
            return x.clone()
        return batch_norm(x, weight, bias, mean, variance, *rest)

    return run


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def _linear(rec: Recorder, out: Any, x: Any, weight: Any, bias: Any = None) -> bool:
    base, steps = rec.base_of(weight)
    if rec.role_of(base) != "parameter" or steps or x.dim() == 0 or weight.dim() != 2:
        return False
    rec.add("linear", [x, base, *([bias] if bias is not None else [])], [out], label="linear")
    return True


def _attention(
    rec: Recorder,
    out: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> bool:
    mask = [attn_mask] if attn_mask is not None else []
    attrs: dict[str, Attr] = {"causal": bool(is_causal)}
    if dropout_p:
        attrs["dropout"] = float(dropout_p)
    rec.add("attention", [query, key, value, *mask], [out], attrs)
    return True


def _dropout(
    rec: Recorder,
    out: Any,
    x: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> bool:
    if training and p > 0:
        rec.add("dropout", [x], [out], {"p": float(p)})
    elif out is not x:
        rec.add("view", [x], [out], {"fn": "alias"})
    return True


def _cross_entropy(
    rec: Recorder, out: Any, x: Any, target: Any, weight: Any = None, **options: Any
) -> bool:
    plain = weight is None and not options.get("label_smoothing") and target.dtype == torch.int64
    if not plain or options.get("reduction", "mean") == "none":
        return False
    rec.add("cross_entropy", [x, target], [out])
    return True


def _batch_norm(rec: Recorder, out: Any, x: Any, *rest: Any) -> bool:
    rec.add("batch_norm", [x, *(t for t in rest[:2] if t is not None)], [out])
    return True


def _rms_norm(
    rec: Recorder, out: Any, x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None
) -> bool:
    affine = [weight] if weight is not None else []
    rec.add("rms_norm", [x, *affine], [out], {"axes": len(normalized_shape)})
    return True


def _recurrent(cell: str) -> Callable[..., bool]:
    def capture(rec: Recorder, out: Any, *args: Any, **_: Any) -> bool:
        packed = not isinstance(args[2], list | tuple)
        if packed:
            x, sizes, _, weights, _, layers, dropout, _, bidirectional = args[:9]
            batch_first = False
        else:
            x, _, weights, _, layers, dropout, _, bidirectional, batch_first = args[:9]
        hidden = weights[1].shape[-1]
        attrs: dict[str, Attr] = {
            "cell": cell,
            "hidden": int(hidden),
            "layers": int(layers),
            "bidirectional": bool(bidirectional),
            "batch_first": bool(batch_first),
        }
        if dropout:
            attrs["dropout"] = float(dropout)
        if packed:
            attrs["steps"] = int(sizes.shape[0])
        rec.add("rnn", [x, *weights], [t for t in tree_flatten(out)[0] if is_tensor(t)], attrs)
        return True

    return capture


class _Composite(NamedTuple):
    """A function that is recorded whole."""

    owner: Any
    name: str
    capture: Callable[..., bool]
    """Records a call, or declines and lets its parts be recorded."""
    stand_in: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda original: original
    """What runs in its place."""


_COMPOSITES = (
    _Composite(F, "linear", _linear),
    _Composite(F, "scaled_dot_product_attention", _attention, _without_dropout),
    _Composite(F, "dropout", _dropout),
    _Composite(F, "cross_entropy", _cross_entropy),
    _Composite(F, "rms_norm", _rms_norm),
    _Composite(torch, "batch_norm", _batch_norm, _shape_alone),
    _Composite(torch._VF, "lstm", _recurrent("lstm")),
    _Composite(torch._VF, "gru", _recurrent("gru")),
    _Composite(torch._VF, "rnn_tanh", _recurrent("rnn")),
    _Composite(torch._VF, "rnn_relu", _recurrent("rnn")),
)
_DEVICE = torch.ops.prim.device.default
