"""Which tensors eager PyTorch copies into another memory order, found by following strides.

Ops differ in what they take. An elementwise op takes any order; a norm copies what is not
contiguous; a convolution wants an image in the order of its weight; a reshape copies where a view
will not do. Gradients have orders of their own, which are followed from the loss back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from traincast.estimate.forward_order import Forward, heads_inside, is_matrix, rows_of
from traincast.estimate.order import (
    Laid,
    Shape,
    contiguous,
    elementwise,
    form,
    image,
    preserved,
)
from traincast.graph import FLOATS, KINDS, Attr, Op
from traincast.graph.kinds import pointwise


class Found(NamedTuple):
    """What the memory order means for one op."""

    forward: tuple[int, ...]
    """Tensors that it copies first: i for input i, ~j for output j."""
    backward: tuple[int, ...]
    """The same in backward, where ~j is the gradient of output j."""
    attrs: Mapping[str, Attr]
    """What else changes: `turned` and `turned_back`, those of the copies forward and backward whose
    innermost axis becomes another one, `nhwc` where an image has its channels last, `strided` where
    a linear layer's input does not fold into rows, `streaming` where a clone keeps the order,
    `free` where it has nothing to do, `apart` where tensors to be joined are parts of others,
    `forms` of an elementwise op forward and for each gradient of an input: `strided` where operands
    lie in several orders or are broadcast, `turned` where another axis of one is innermost, `mixed`
    where types differ."""


class Orders(NamedTuple):
    """What the memory order means for a network."""

    ops: list[Found]
    sums: dict[str, tuple[str, ...]]
    """For each value with several readers whose gradients lie in several orders: the forms of the
    kernels that add these up, `strided` or `turned`."""


def find_moves(
    ops: Sequence[Op],
    shapes: Mapping[str, Shape],
    types: Mapping[str, str],
    roles: Mapping[str, str],
    needs_grad: frozenset[str] | set[str],
    layout: str,
) -> Orders:
    """Return the copies of every op for images in a layout, `nchw` or `nhwc`."""
    last = layout == "nhwc" and any(
        len(shapes[name]) == 4 for name, role in roles.items() if role != "activation"
    )
    follower = _Follower(ops, shapes, types, roles, needs_grad, last)
    if last and any(op.attrs.get("fn") == "clone" for op in ops):
        # Graphs are traced with channels first: a clone of what was contiguous then was asked for.
        plain = _Follower(ops, shapes, types, roles, needs_grad, last=False)
        plain.forward()
        follower.asked = plain.asked
    follower.forward()
    follower.backward()
    found = [
        Found(tuple(a), tuple(b), c)
        for a, b, c in zip(follower.before, follower.after, follower.attrs, strict=True)
    ]
    return Orders(found, follower.sums)


class _Follower(Forward):
    """Follows gradients back after the forward pass."""

    def backward(self) -> None:
        """Follow gradients from the last op to the first; the first to arrive sets the order."""
        if not self.needs_grad:
            return
        for i in range(len(self.ops) - 1, -1, -1):
            op = self.ops[i]
            if not KINDS[op.kind].differentiable(op):
                continue
            wanted = [n for n in op.outputs if n in self.needs_grad]
            if not wanted or not any(n in self.needs_grad for n in op.inputs):
                continue
            outs = [self.grads.pop(n, contiguous(self.shapes[n])) for n in op.outputs]
            ins = [self.laid[n] for n in op.inputs]
            rule = getattr(self, f"_{op.kind}_grad", None)
            found = rule(i, op, ins, outs) if rule else [contiguous(x.shape) for x in ins]
            for name, grad in zip(op.inputs, found, strict=False):
                if name in self.needs_grad:
                    self._add_grad(name, grad)

    def _add_grad(self, name: str, grad: Laid) -> None:
        first = self.grads.get(name)
        if first is None:
            self.grads[name] = grad
            return
        if slow := form(first, grad):
            self.sums[name] = (*self.sums.get(name, ()), slow)
        if not first.dense:
            self.grads[name] = elementwise(first.shape, (first, grad))

    def _contiguous_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        if not outs[0].contiguous:
            self._copied_back(i, ~0, outs[0])
        if not ins[0].contiguous and op.kind != "softmax":
            self._copied_back(i, 0, ins[0])
        return [contiguous(x.shape) for x in ins]

    _layer_norm_grad = _rms_norm_grad = _group_norm_grad = _contiguous_grad
    _softmax_grad = _embedding_grad = _contiguous_grad

    def _view_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        fn, x, grad = op.attrs["fn"], ins[0], outs[0]
        order = op.attrs.get("order")
        if fn == "permute" and isinstance(order, tuple):
            return [grad.permuted([order.index(a) for a in range(len(order))])]
        if fn == "alias" or (fn == "expand" and grad.shape == x.shape):
            return [grad]
        if fn == "split":
            return [image(x.shape, all(g.prefers_channels_last for g in outs))]
        if fn != "reshape":
            return [contiguous(x.shape)]
        view = grad.viewed(x.shape)
        if view is None:
            self._copied_back(i, ~0, grad)
        return [view or contiguous(x.shape)]

    def _copy_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        if op.attrs["fn"] in ("cast", "clone") and outs[0].shape == ins[0].shape:
            return [outs[0] if op.attrs["fn"] == "clone" else preserved(outs[0])]
        return [contiguous(x.shape) for x in ins]

    def _pointwise_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        fn, grad = str(op.attrs["fn"]), outs[0]
        kept = self.laid[op.outputs[0]]
        found, forms = [], []
        wide = self.types[op.outputs[0]]
        for index, x in enumerate(ins):
            runs = bool(pointwise.backward_of(fn, index))
            operands, mixed = (grad, kept), False
            two = len(ins) == 2
            if pointwise.keeps_nothing(fn) or (two and op.inputs[1 - index] in self.numbers):
                operands = (grad, grad)
            elif two:
                operands = (grad, ins[1 - index])
                mixed = self.types[op.inputs[1 - index]] in FLOATS - {wide}
            elif fn == "relu":
                # Of these gradients only a relu's names what was saved before the gradient.
                operands = (kept, grad)
            made = elementwise(grad.shape, operands) if runs else grad
            own = form(made, *operands) or ("mixed" if mixed else "")
            forms.append(own if runs else "")
            found.append(made if x.shape == grad.shape else contiguous(x.shape))
        if any(forms):
            first = self.attrs[i].get("forms", ("",))
            assert isinstance(first, tuple)
            self.attrs[i]["forms"] = (str(first[0]), *forms)
        return found

    def _dropout_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        return [elementwise(outs[0].shape, (outs[0], self.laid[op.outputs[0]]))]

    def _conv_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        last, grad = bool(self.attrs[i].get("nhwc")), outs[0]
        if not (grad.channels_last if last else grad.contiguous):
            # Once for the gradient of the data and once for that of the weight.
            for _ in range(sum(name in self.needs_grad for name in op.inputs[:2])):
                self._copied_back(i, ~0, grad, last)
        elif last and grad.shape[2:] == (1, 1):
            self.after[i].append(~0)
        self._again(i)
        if 1 in self.before[i]:
            # The weight's gradient, in the order of the convolution, is turned to its own.
            self.after[i].append(1)
        return [image(x.shape, last) for x in ins]

    def _again(self, i: int) -> None:
        """Note that backward copies the inputs that forward has copied."""
        turned, back = self.attrs[i].get("turned", ()), self.attrs[i].get("turned_back", ())
        assert isinstance(turned, tuple)
        assert isinstance(back, tuple)
        self.after[i] += self.before[i]
        if turned:
            self.attrs[i]["turned_back"] = (*back, *turned)

    def _batch_norm_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        if self._by_pytorch(op):
            if len(outs[0].shape) != 2 and not outs[0].channels_last:
                self.attrs[i]["mixed"] = True
            return [preserved(ins[0])]
        return self._pool_grad(i, op, ins, outs)

    def _pool_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        last = bool(self.attrs[i].get("nhwc"))
        adaptive = "adaptive" in str(op.attrs.get("aten"))
        if not adaptive and not (outs[0].channels_last if last else outs[0].contiguous):
            self._copied_back(i, ~0, outs[0], last)
        self._again(i)
        return [image(x.shape, last) for x in ins]

    _interpolate_grad = _pool_grad

    def _linear_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        if outs[0].viewed(rows_of(outs[0].shape)) is None:
            self._copied_back(i, ~0, outs[0])
        return [contiguous(x.shape) for x in ins]

    def _matmul_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        if not is_matrix(outs[0]):
            self._copied_back(i, ~0, outs[0])
        return [contiguous(x.shape) for x in ins]

    def _attention_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        if op.attrs.get("algorithm") == "math":
            if not outs[0].contiguous:
                self._copied_back(i, ~0, outs[0])
            return [contiguous(x.shape) for x in ins]
        if self._by_cudnn(op):
            if outs[0].strides != self.laid[op.outputs[0]].strides:
                self.after[i].append(~0)
            return [preserved(x) for x in ins]
        if outs[0].strides != heads_inside(outs[0].shape).strides:
            self.after[i].append(~0)
        return [heads_inside(x.shape) for x in ins]

    def _concat_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        parts = [Laid(x.shape, outs[0].strides) for x in ins]
        wide = self.types[op.outputs[0]]
        return [
            part if self.types[name] == wide else preserved(part)
            for name, part in zip(op.inputs, parts, strict=True)
        ]
