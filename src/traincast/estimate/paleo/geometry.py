"""Convolutions as sizes: the layer itself and the two convolutions that compute its gradients.

Data gradient: a stride-1 convolution of the output's gradient, spread out by the stride, with the
filter turned round. Filter gradient: a stride-1 convolution of the input with that same spread-out
gradient, samples and channels exchanged. For height (width likewise), with out positions o:

    e      = (o − 1)·s + 1                     length of the spread-out gradient
    before = k − 1 − pad,  after = (h + k − 1) − e − before
    before ≠ after: the gradient is lengthened by the difference, the smaller of the two is the pad

The authors lengthen by 1 and stop with an assertion at any larger difference, which means that the
stride leaves rows at the end of the input unused; the same rule, lengthened by all of these
rows, gives the sizes that the assertion asks for, and is used here.
"""

from __future__ import annotations

from typing import NamedTuple

from traincast.errors import InvalidValueError
from traincast.estimate.paleo.net import Layer
from traincast.estimate.paleo.rules import Rules


class Conv(NamedTuple):
    """Sizes of one convolution of [n, h, w, ci] with [kh, kw, ci, co]."""

    n: int
    h: int
    w: int
    ci: int
    kh: int
    kw: int
    co: int
    oh: int
    ow: int
    ph: int
    """Zeros on each side of the height."""
    pw: int

    @property
    def outputs(self) -> int:
        """Elements of the output."""
        return self.n * self.oh * self.ow * self.co


class Gradients(NamedTuple):
    """The convolutions that compute the gradients of one."""

    data: Conv
    filter: Conv
    holes: float
    """Share of the spread-out gradient that is zero because of the stride."""


class _Axis(NamedTuple):
    """Height or width of a gradient."""

    size: int
    """Of the spread-out gradient."""
    pad: int
    """Of the data gradient."""
    filter_pad: int
    """Of the filter gradient."""


def forward_conv(layer: Layer, n: int, rules: Rules) -> Conv:
    """Return the sizes of a convolution layer, or of the one that a deconvolution turns round."""
    wide, narrow = layer.inputs[0], layer.output
    if layer.type == "Deconvolution":
        wide, narrow = narrow, wide
    pads = [_pad(layer, i, wide[i], narrow[i], rules) for i in (0, 1)]
    ci, co = (c // layer.groups for c in layer.channels)
    return Conv(
        n * layer.rows,
        wide[0],
        wide[1],
        ci,
        *layer.kernel,
        co,
        narrow[0],
        narrow[1],
        *pads,
    )


def _pad(layer: Layer, i: int, size: int, out: int, rules: Rules) -> int:
    """Return the zeros on one side; SAME in `head` would be −1 where k < s, which becomes 0."""
    if isinstance(layer.padding, tuple):
        return layer.padding[i]
    if layer.padding == "VALID":
        return 0
    k, s = layer.kernel[i], layer.strides[i]
    if rules.same_by_output:
        return max(((out - 1) * s + k - size) // 2, 0)
    if s > 1:
        p = max((out - 1) * s + k - size, 0) // 2
        raise InvalidValueError(
            f"layer {layer.name!r} has padding SAME and stride {s}, for which the rules `paper` "
            f'have no sensible pad; use rules="head", or write the padding as numbers (here {p})'
        )
    return ((size - 1) * s + k - size) // 2


def gradients(layer: Layer, conv: Conv, rules: Rules) -> Gradients:
    """Return the convolutions that compute the gradients of a layer's convolution."""
    high = _axis(layer, 0, conv.h, conv.kh, conv.oh, conv.ph, rules)
    wide = _axis(layer, 1, conv.w, conv.kw, conv.ow, conv.pw, rules)
    eh, ew = high.size, wide.size
    data = Conv(
        conv.n, eh, ew, conv.co, conv.kh, conv.kw, conv.ci, conv.h, conv.w, high.pad, wide.pad
    )
    oh = conv.h + 2 * high.filter_pad - eh + 1
    ow = conv.w + 2 * wide.filter_pad - ew + 1
    assert (eh + 2 * high.pad - conv.kh + 1, oh) == (conv.h, conv.kh), layer.name
    assert (ew + 2 * wide.pad - conv.kw + 1, ow) == (conv.w, conv.kw), layer.name
    back = Conv(
        conv.ci, conv.h, conv.w, conv.n, eh, ew, conv.co, oh, ow, high.filter_pad, wide.filter_pad
    )
    return Gradients(data, back, (eh * ew - conv.oh * conv.ow) / (eh * ew))


def _axis(layer: Layer, i: int, h: int, k: int, out: int, pad: int, rules: Rules) -> _Axis:
    spread = (out - 1) * layer.strides[i] + 1
    before = k - 1 - pad
    after = (h + k - 1) - spread - before
    if after >= before:
        return _Axis(spread + after - before, before, pad)
    # Only SAME with an odd number of zeros in all comes here; `head` alone knows what to do.
    if not rules.same_by_output:
        raise InvalidValueError(
            f"layer {layer.name!r} has padding SAME and a kernel of even length {k}, whose "
            'gradient the rules `paper` cannot size; use rules="head", or an odd kernel'
        )
    return _Axis(spread + before - after, after, pad + before - after)
