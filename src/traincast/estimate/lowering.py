"""What an op launches in eager PyTorch on an NVIDIA GPU, where it is not what its kind lists.

Kinds list the aten ops that autograd runs. On a GPU some of them fall apart into others, and
tensors are copied between memory orders. A kernel here is one aten op with all that it launches
itself; `launches` says how many that are. Copies have names by what they do:

    clone            as it lies, one stretch of memory to another
    _to_copy         into another element type, in the same order
    copy_.permute    into another order of axes, the innermost axis staying so
    copy_.transpose  into an order in which another axis is innermost
    copy_.narrow     into or out of a part of a larger tensor

An elementwise kernel that has several orders or broadcast operands to go by is `add.strided`: it
computes an index for each operand. Where another axis of an operand is innermost than of the result
it is `add.turned`: neighbours in one are far apart in the other. One whose operands differ in type
is `add.mixed`. `div.spread` divides a few values and writes each to many places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from traincast.graph.kinds import Arg, Case, Costs, Kernel


class Moves(NamedTuple):
    """Tensors that an op copies into another memory order: i for input i, ~j for output j."""

    forward: tuple[int, ...] = ()
    backward: tuple[int, ...] = ()
    """In backward, ~j is the gradient of output j."""


def launched(case: Case, costs: Costs, moves: Moves) -> Costs:
    """Return what really launches for an op."""
    if case.attrs.get("algorithm") == "math":
        costs = _math(case, costs)
    if case.attrs.get("square"):
        costs = costs._replace(data=tuple(map(_first_power, costs.data)))
    return costs._replace(
        forward=_copies(case, moves.forward, "turned") + _each(costs.forward, case),
        data=_copies(case, moves.backward, "turned_back") + _each(costs.data, case),
        weight=_each(costs.weight, case),
    )


def _copies(case: Case, which: tuple[int, ...], turned: str) -> tuple[Kernel, ...]:
    return tuple(
        [_copy(_moved(case, i, turned), case.ins[i] if i >= 0 else case.outs[~i]) for i in which]
    )


def _moved(case: Case, which: int, turned: str) -> str:
    """Return the name of a copy into another order."""
    known = case.attrs.get(turned, ())
    assert isinstance(known, tuple)
    return "copy_.transpose" if which in known else "copy_.permute"


def _each(kernels: Iterable[Kernel], case: Case) -> tuple[Kernel, ...]:
    found: list[Kernel] = []
    last = bool(case.attrs.get("nhwc"))
    for kernel in kernels:
        rule = RULES.get(kernel.name)
        if rule is not None:
            found += rule(kernel, case)
            continue
        launches = LAUNCHES.get(kernel.name, 1)
        if last or launches > 1:
            kernel = kernel._replace(nhwc=last, launches=launches)  # noqa: PLW2901
        found.append(kernel)
    return tuple(found)


def _first_power(kernel: Kernel) -> Kernel:
    """The gradient of a square takes the first power, which is a copy."""
    return kernel._replace(name="clone", family="copy") if kernel.name == "pow" else kernel


LAUNCHES = {
    "_softmax_backward_data": 2,
    "_scaled_dot_product_attention": 2,
    "_scaled_dot_product_attention_backward": 4,
    "max_pool2d_with_indices_backward": 2,
    "nll_loss_backward": 2,
    "nll_loss2d_backward": 2,
    "index_put": 13,
}
"""Kernels that one aten op launches, where they are more than one."""


def _copy(name: str, moved: Arg) -> Kernel:
    return Kernel(name, "copy", 0, 0, moved.size, moved.size, each=moved.each)


def _zeros(size: float, each: float) -> Kernel:
    return Kernel("zeros", "fill", 0, 0, 0, size, each=each)


def _clone(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    if case.attrs.get("free"):
        return ()
    streaming = case.attrs.get("streaming")
    return (kernel if streaming else kernel._replace(name=_moved(case, 0, "turned")),)


def _part(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """The gradient of a slice: zeros, and the part that is known."""
    x, part = case.ins[0], case.outs[0]
    return _zeros(x.size, x.each), _copy("copy_.narrow", part)


def _pad(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """Forward zeros and what lies inside them, backward the part inside."""
    x, y = case.ins[0], case.outs[0]
    if x.n == y.n:
        return (_copy("clone", x),)
    if kernel.write == x.size:
        return (_copy("copy_.narrow", x),)
    return _zeros(y.size, y.each), _copy("copy_.narrow", x)


def _copied(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """A copy into memory that is there: whole as it lies, a part of a larger tensor by strides."""
    part = case.attrs.get("part") or kernel.write < max(a.size for a in (*case.ins, *case.outs))
    return (kernel._replace(name="copy_.narrow" if part else "clone"),)


def _roll(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """One axis after the other; images and windows are rolled along two."""
    return (kernel,) * (2 if len(case.ins[0].shape) >= 4 else 1)


def _linear(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """A product with its bias; apart where the input's axes are not those of a plain matrix."""
    if not case.attrs.get("strided"):
        return (kernel,)
    bias, y = case.ins[2], case.outs[0]
    added = Kernel("add.strided", "pointwise", 0, y.n, y.size + bias.size, y.size, each=y.each)
    return kernel._replace(name="mm", read=kernel.read - bias.size), added


def _conv_bias(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """PyTorch's own depthwise kernel, which runs for channels first, adds the bias itself."""
    x, groups = case.ins[0], case.number("groups", 1)
    plain = not case.attrs.get("nhwc") and not case.attrs.get("transposed")
    own = plain and len(x.shape) == 4 and 1 < groups == x.shape[1]
    return () if own else (kernel,)


def _batch_norm(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """In bfloat16 PyTorch's own: statistics, running statistics, values; else cuDNN's in one.

    Channels last, blocks that share a channel count each other, on a counter to be cleared
    (`flexible_launch_configs` of ATen/native/cuda/Normalization.cuh: from 8 blocks of 256 rows).
    Backward, a gradient in another order than the input takes the kernels of channels first.
    """
    last = bool(case.attrs.get("nhwc"))
    if len(case.ins[0].shape) == 2:
        kernel = kernel._replace(space=0)
    counter = 1 if last and kernel.dims[1] > 7 * 256 else 0
    if kernel.name == "native_batch_norm":
        return (kernel._replace(nhwc=last, launches=3 + counter),)
    if not last or case.attrs.get("mixed"):
        return (kernel,)
    return (kernel._replace(nhwc=True, launches=2 + counter),)


def _layer_norm_backward(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """One kernel for the data, one for weight and bias; of many short rows these add partial sums.

    The bounds are those of `cuComputeGradGammaBeta` (ATen/native/cuda/layer_norm_kernel.cu).
    """
    rows, columns = kernel.dims[:2]
    return (kernel._replace(launches=4 if rows > 65536 and columns / 32 < 66 else 2),)


def _embedding_backward(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """Zeros and one kernel; of many indices these are sorted first, by eight passes over digits.

    The bound is that of `embedding_dense_backward_cuda` (ATen/native/cuda/Embedding.cu).
    """
    return (kernel._replace(launches=30 if kernel.dims[0] > 3072 else 2),)


def _masked_fill(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """Out of place: a copy, which is then written into."""
    y = case.outs[0]
    if case.attrs.get("inplace"):
        return (kernel,)
    return _copy("clone", y), kernel


def _mean_backward(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """A broadcast gradient is divided.

    Of an image with channels last, the mean is a strided view: its gradient goes into zeros.
    """
    if case.attrs.get("fn") != "mean":
        return (kernel,)
    y, divided = case.outs[0], kernel._replace(name="div.spread")
    if not case.attrs.get("nhwc"):
        return (divided,)
    return _zeros(y.size, y.each), _copy("clone", y), divided


def _cat(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """Tensors that do not lie in the order of the whole are joined value by value."""
    name = "cat.strided" if case.attrs.get("apart") else kernel.name
    return (kernel._replace(name=name, nhwc=bool(case.attrs.get("nhwc"))),)


def _summed_into(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """Forward into a copy of the table unless in place, backward into zeros."""
    table = case.ins[0]
    own = kernel._replace(write=max(kernel.write - table.size, kernel.ops * kernel.each))
    if case.attrs.get("fn") != kernel.name:
        return _zeros(table.size, table.each), own
    if case.attrs.get("inplace"):
        return (kernel,)
    return _copy("clone", table), own._replace(read=own.read - table.size)


def _picked_back(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """The gradient of a largest value goes to where that was found, among zeros."""
    x, y = case.ins[0], case.outs[0]
    if case.attrs.get("fn") not in ("max", "min"):
        return (kernel,)
    return _zeros(x.size, x.each), kernel._replace(read=y.size + 8 * y.n, write=y.size)


def _rnn(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """One call of cuDNN for all layers and positions; of its two gradients, one for both."""
    if kernel.name == "rnn_backward.weight":
        return ()
    return (whole_rnn(kernel),)


def _grouped(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    """In 4 bytes one product after the other: only in 2 has the library a kernel for all groups.

    `_grouped_mm_fallback` of ATen/native/GroupedMMUtils.h; so recorded on an H200.
    """
    if kernel.each == 2:
        return (kernel,)
    rows, columns, depth, groups = kernel.dims
    part = 1 / max(groups, 1)
    one = kernel._replace(
        name="mm", flops=kernel.flops * part, ops=kernel.ops * part, read=kernel.read * part,
        write=kernel.write * part, dims=(rows, columns, depth, 1),
    )  # fmt: skip
    return (one,) * int(groups)


def masked_attention(kernel: Kernel, mask: Arg | None) -> Kernel:
    """Return fused attention as it runs with a mask: in 2 bytes, by other kernels.

    `masked` by one that is given, `learned` by one that wants a gradient itself, as a bias does.
    """
    name = kernel.name
    if mask is not None and kernel.each == 2:
        name += ".learned" if mask.grad else ".masked"
    return kernel._replace(name=name, launches=LAUNCHES[kernel.name])


def _attention(kernel: Kernel, case: Case) -> tuple[Kernel, ...]:
    return (masked_attention(kernel, case.ins[3] if len(case.ins) > 3 else None),)


def whole_rnn(kernel: Kernel) -> Kernel:
    """Return what cuDNN runs for recurrent layers: backward, both gradients at once."""
    times = 1 if kernel.name == "rnn" else 2
    return kernel._replace(flops=times * kernel.flops, ops=times * kernel.ops, launches=1)


Rule = Callable[[Kernel, Case], tuple[Kernel, ...]]
RULES: dict[str, Rule] = {
    "clone": _clone,
    "copy_": _copied,
    "select_backward": _part,
    "slice_backward": _part,
    "constant_pad_nd": _pad,
    "roll": _roll,
    "addmm": _linear,
    "convolution.bias": _conv_bias,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "embedding_dense_backward": _embedding_backward,
    "masked_fill": _masked_fill,
    "div": _mean_backward,
    "cat": _cat,
    "scatter": _picked_back,
    "scatter_add": _summed_into,
    "index_add": _summed_into,
    "_grouped_mm": _grouped,
    "_scaled_dot_product_attention": _attention,
    "_scaled_dot_product_attention_backward": _attention,
    "rnn": _rnn,
    "rnn_backward.data": _rnn,
    "rnn_backward.weight": _rnn,
}
"""aten ops that a GPU runs as others."""


def _math(case: Case, costs: Costs) -> Costs:
    """Attention by separate products: keys and values are repeated for the heads that share them.

    Both factors are scaled, a causal mask is made each time, and rows that are masked as a whole
    are looked for.
    """
    q, k, v = case.ins[:3]
    e = q.each
    heads = q.n / max(q.shape[-1] * q.shape[-2], 1)
    mask = q.shape[-2] * k.shape[-2]
    scores = heads * mask
    wide_k, wide_v = heads * k.shape[-2] * k.shape[-1], heads * v.shape[-2] * v.shape[-1]
    product, scaling, softmax, weighting = costs.forward
    causal, shared = bool(case.attrs.get("causal")), wide_k > k.n

    def passes(name: str, n: float, read: float = e, write: float = e) -> Kernel:
        return Kernel(name, "pointwise", 0, n, read * n, write * n, each=read)

    def repeated(n: float) -> Kernel:
        return Kernel("copy_.permute", "copy", 0, 0, n * e, n * e, each=e)

    def shared_sum(n: float, into: Arg) -> Kernel:
        dims = (into.n, n / max(into.n, 1), into.shape[-1], 0)
        return Kernel("sum", "reduction", 0, n, n * e, into.size, dims, each=e)

    masking = (
        _zeros(mask, 1),
        passes("tril", mask, 1, 1),
        *(_zeros(e, e),) * 2,
        passes("where.strided", mask, 1, e),
    )
    rows = softmax.dims
    forward = (
        passes("mul", q.n),
        *(masking if causal else ()),
        *((repeated(wide_k), repeated(wide_v)) if shared else ()),
        passes("mul", wide_k),
        repeated(q.n),
        product,
        *((scaling._replace(name="add.strided"),) if causal or len(case.ins) > 3 else ()),
        softmax,
        passes("isneginf", scores, e, 1),
        Kernel("all", "reduction", 0, scores, scores, rows[0], rows, each=1),
        _zeros(e, e),
        passes("where.strided", scores),
        weighting,
    )
    if not costs.data:
        return costs._replace(forward=forward)
    data = (
        *(kernel for kernel in costs.data if kernel.name != "mul"),
        passes("mul", wide_k),
        *((shared_sum(wide_k, k), shared_sum(wide_v, v)) if shared else ()),
        passes("mul", q.n),
    )
    return costs._replace(forward=forward, data=data)
