"""Which tensors eager PyTorch copies into another memory order, found by following strides.

Ops differ in what they take. An elementwise op takes any order; a norm copies what is not
contiguous; a convolution wants an image in the order of its weight; a reshape copies where a view
will not do. Gradients have orders of their own, which are followed from the loss back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


class _Follower:
    def __init__(
        self,
        ops: Sequence[Op],
        shapes: Mapping[str, Shape],
        types: Mapping[str, str],
        roles: Mapping[str, str],
        needs_grad: frozenset[str] | set[str],
        last: bool,
    ) -> None:
        self.ops, self.shapes, self.types, self.needs_grad = ops, shapes, types, needs_grad
        self.laid: dict[str, Laid] = {}
        self.grads: dict[str, Laid] = {}
        self.sums: dict[str, tuple[str, ...]] = {}
        self.before: list[list[int]] = [[] for _ in ops]
        self.after: list[list[int]] = [[] for _ in ops]
        self.attrs: list[dict[str, Attr]] = [{} for _ in ops]
        self.last = last
        self.asked: set[int] = set()
        self.numbers: set[str] = set()
        for name, role in roles.items():
            if role != "activation":
                self.laid[name] = image(shapes[name], last)
            if role == "buffer" and not shapes[name] and name.startswith("constant"):
                # Made by the forward pass itself from a number: it lies on the host, and so does
                # what is computed from it alone. Kernels take such a number as their argument.
                self.numbers.add(name)

    def forward(self) -> None:
        """Follow every op."""
        for i, op in enumerate(self.ops):
            ins = [self.laid[n] for n in op.inputs]
            outs = [self.shapes[n] for n in op.outputs]
            if op.inputs and not any(outs) and self.numbers.issuperset(op.inputs):
                self.numbers.update(op.outputs)
            rule = getattr(self, f"_{op.kind}", None)
            found = rule(i, op, ins, outs) if rule else [contiguous(s) for s in outs]
            found += [contiguous(s) for s in outs[len(found) :]]
            self.laid.update(zip(op.outputs, found, strict=True))

    def _copied(self, i: int, which: int, laid: Laid, last: bool = False) -> None:
        """Note that op i first copies a tensor into the order of its axes, or channels last."""
        self.before[i].append(which)
        self._turned(i, "turned", which, laid, last)

    def _copied_back(self, i: int, which: int, laid: Laid, last: bool = False) -> None:
        """The same in backward."""
        self.after[i].append(which)
        self._turned(i, "turned_back", which, laid, last)

    def _turned(self, i: int, key: str, which: int, laid: Laid, last: bool) -> None:
        if laid.innermost != image(laid.shape, last).innermost:
            known = self.attrs[i].get(key, ())
            assert isinstance(known, tuple)
            self.attrs[i][key] = (*known, which)

    def _contiguous_inputs(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        if ins and not ins[0].contiguous:
            self._copied(i, 0, ins[0])
        return [contiguous(s) for s in outs]

    _layer_norm = _rms_norm = _group_norm = _softmax = _rnn = _contiguous_inputs

    def _view(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        fn, x = op.attrs["fn"], ins[0]
        order = op.attrs.get("order")
        if fn == "permute" and isinstance(order, tuple):
            return [x.permuted([int(a) for a in order])]
        if fn == "expand":
            return [x.expanded(outs[0])]
        if fn in ("select", "unbind"):
            axis = _dropped(x.shape, outs[0])
            strides = x.strides[:axis] + x.strides[axis + 1 :]
            return [Laid(s, strides) for s in outs]
        if fn in ("slice", "split", "detach", "alias") and len(outs[0]) == len(x.shape):
            return [Laid(s, x.strides) for s in outs]
        view = x.viewed(outs[0])
        if view is None:
            self._copied(i, 0, x)
        return [view or contiguous(outs[0])]

    def _copy(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        fn, x = op.attrs["fn"], ins[0]
        if fn == "cast":
            return [preserved(x)]
        if fn == "clone" and not self.last and x.contiguous:
            self.asked.add(i)
        if fn == "clone" and i in self.asked:
            self.attrs[i]["streaming"] = True
            return [preserved(x)]
        if fn == "clone" and x.contiguous:
            self.attrs[i]["free"] = True
        elif fn == "clone":
            self._turned(i, "turned", 0, x, last=False)
        if fn == "pad":
            return [image(outs[0], x.prefers_channels_last)]
        return [contiguous(s) for s in outs]

    def _pointwise(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        made = [ins[0] if op.attrs.get("inplace") else elementwise(s, ins) for s in outs]
        names = [n for n in op.inputs if n not in self.numbers]
        floats = {self.types[n] for n in names if self.types[n] in FLOATS}
        found = form(made[0], *[self.laid[n] for n in names])
        found = found or ("mixed" if len(floats) > 1 else "")
        if found:
            self.attrs[i]["forms"] = (found,)
        return made

    def _dropout(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        return [preserved(ins[0])]

    def _conv(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        last = ins[0].prefers_channels_last or ins[1].prefers_channels_last
        return self._image_op(i, ins[:2], outs, last)

    def _batch_norm(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        if self._by_pytorch(op):
            # Rows of channels, without an image, are images of one pixel with the channels last.
            if len(outs[0]) == 2 or (ins[0].channels_last and ins[0].prefers_channels_last):
                self.attrs[i]["nhwc"] = True
            return [preserved(ins[0])]
        return self._pool(i, op, ins, outs)

    def _by_pytorch(self, op: Op) -> bool:
        """Tell whether PyTorch's own batch norm runs, which takes any order; else cuDNN's."""
        name = op.inputs[0]
        return self.types[name] == "bfloat16" or len(self.shapes[name]) == 2

    def _pool(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        return self._image_op(i, ins[:1], outs, ins[0].prefers_channels_last)

    _interpolate = _pool

    def _image_op(self, i: int, ins: list[Laid], outs: list[Shape], last: bool) -> list[Laid]:
        if last:
            self.attrs[i]["nhwc"] = True
        for index, x in enumerate(ins):
            if not (x.channels_last if last else x.contiguous):
                self._copied(i, index, x, last)
        return [image(s, last) for s in outs]

    def _linear(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        x = ins[0]
        if not x.contiguous and len(x.shape) > 2:
            self.attrs[i]["strided"] = True
            if x.viewed(_rows(x.shape)) is None:
                self._copied(i, 0, x)
        return [contiguous(s) for s in outs]

    def _matmul(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        for index, x in enumerate(ins[:2]):
            if not _is_matrix(x):
                self._copied(i, index, x)
        return [contiguous(s) for s in outs]

    def _attention(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        if op.attrs.get("algorithm") == "math":
            return [contiguous(s) for s in outs]
        if self._by_cudnn(op):
            return [preserved(Laid(outs[0], ins[0].strides))]
        return [_heads_inside(outs[0])]

    def _by_cudnn(self, op: Op) -> bool:
        return self.types[op.inputs[0]] != "float32"

    def _concat(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        last = all(x.prefers_channels_last for x in ins)
        if last:
            self.attrs[i]["nhwc"] = True
        if not all(x.channels_last if last else x.contiguous for x in ins):
            self.attrs[i]["apart"] = True
        return [image(outs[0], last)]

    def _reduce(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        x = ins[0]
        if x.prefers_channels_last and outs[0] == (*x.shape[:2], 1, 1):
            self.attrs[i]["nhwc"] = True
            return [image(outs[0], last=True)]
        return [contiguous(s) for s in outs]

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
        if outs[0].viewed(_rows(outs[0].shape)) is None:
            self._copied_back(i, ~0, outs[0])
        return [contiguous(x.shape) for x in ins]

    def _matmul_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        if not _is_matrix(outs[0]):
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
        if outs[0].strides != _heads_inside(outs[0].shape).strides:
            self.after[i].append(~0)
        return [_heads_inside(x.shape) for x in ins]

    def _concat_grad(self, i: int, op: Op, ins: list[Laid], outs: list[Laid]) -> list[Laid]:
        parts = [Laid(x.shape, outs[0].strides) for x in ins]
        wide = self.types[op.outputs[0]]
        return [
            part if self.types[name] == wide else preserved(part)
            for name, part in zip(op.inputs, parts, strict=True)
        ]


def _dropped(shape: Shape, rest: Shape) -> int:
    """Return the axis without which a shape is the rest; the first of several."""
    for axis in range(len(shape)):
        if shape[:axis] + shape[axis + 1 :] == rest:
            return axis
    return 0


def _rows(shape: Shape) -> Shape:
    rows = 1
    for length in shape[:-1]:
        rows *= length
    return (rows, shape[-1])


def _is_matrix(x: Laid) -> bool:
    """Tell whether a matrix library takes the last two axes as they lie, turned or not."""
    if len(x.shape) < 2:
        return True
    rows, columns = x.shape[-2:]
    down, right = x.strides[-2:]
    return (right == 1 and down >= columns) or (down == 1 and right >= rows) or x.contiguous


def _heads_inside(shape: Shape) -> Laid:
    """Return [sample, head, position, channel] with positions outside heads."""
    if len(shape) != 4:
        return contiguous(shape)
    return contiguous((shape[0], shape[2], shape[1], shape[3])).permuted((0, 2, 1, 3))
