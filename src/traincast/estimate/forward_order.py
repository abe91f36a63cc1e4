"""The memory order of every tensor of a forward pass, and what eager PyTorch copies for it.

Ops differ in what they take. An elementwise op takes any order; a norm copies what is not
contiguous; a convolution wants an image in the order of its weight; a reshape copies where a view
will not do. `moves` follows the gradients back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traincast.estimate.order import (
    Laid,
    Shape,
    contiguous,
    elementwise,
    form,
    image,
    preserved,
)
from traincast.graph import FLOATS, Attr, Op


class Forward:
    """Follows the memory order through a network's ops; `backward` stands in `moves`."""

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
            if x.viewed(rows_of(x.shape)) is None:
                self._copied(i, 0, x)
        return [contiguous(s) for s in outs]

    def _matmul(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        for index, x in enumerate(ins[:2]):
            if not is_matrix(x):
                self._copied(i, index, x)
        return [contiguous(s) for s in outs]

    def _attention(self, i: int, op: Op, ins: list[Laid], outs: list[Shape]) -> list[Laid]:
        if op.attrs.get("algorithm") == "math":
            return [contiguous(s) for s in outs]
        if self._by_cudnn(op):
            return [preserved(Laid(outs[0], ins[0].strides))]
        return [heads_inside(outs[0])]

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


def _dropped(shape: Shape, rest: Shape) -> int:
    """Return the axis without which a shape is the rest; the first of several."""
    for axis in range(len(shape)):
        if shape[:axis] + shape[axis + 1 :] == rest:
            return axis
    return 0


def rows_of(shape: Shape) -> Shape:
    """Return the lengths of the matrix whose rows lie along the last axis."""
    rows = 1
    for length in shape[:-1]:
        rows *= length
    return (rows, shape[-1])


def is_matrix(x: Laid) -> bool:
    """Tell whether a matrix library takes the last two axes as they lie, turned or not."""
    if len(x.shape) < 2:
        return True
    rows, columns = x.shape[-2:]
    down, right = x.strides[-2:]
    return (right == 1 and down >= columns) or (down == 1 and right >= rows) or x.contiguous


def heads_inside(shape: Shape) -> Laid:
    """Return [sample, head, position, channel] with positions outside heads."""
    if len(shape) != 4:
        return contiguous(shape)
    return contiguous((shape[0], shape[2], shape[1], shape[3])).permuted((0, 2, 1, 3))
