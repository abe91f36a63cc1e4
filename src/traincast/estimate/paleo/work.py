"""What a layer has to do in each pass: FLOPs to compute and bytes to move, device left open.

Work comes in pieces, because Paleo charges every piece at least one clock cycle:

    compute   Σ times · max(cycle, FLOPs / peak / ppp)          0 for 0 FLOPs
    memory    Σ times · max(cycle, bytes / bandwidth / ppp)     one cycle even for 0 bytes

Everything is fp32. Bias, activation, normalisation, concatenation and softmax cost nothing. The
authors' rules; see `docs/models/paleo.md` for the formulas with worked numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from traincast.errors import InvalidValueError
from traincast.estimate.paleo.algorithms import GEMM_ONLY, Choice
from traincast.estimate.paleo.geometry import Conv, forward_conv, gradients
from traincast.estimate.paleo.net import Layer, LayerNet
from traincast.estimate.paleo.rules import Rules

_TILE = 32
"""Side of the tiles of the tiled FFT."""


class Piece(NamedTuple):
    """An amount of work, `times` over."""

    times: float
    amount: float
    """FLOPs or bytes."""


class Work(NamedTuple):
    """What one layer does in one pass."""

    compute: tuple[Piece, ...] = ()
    memory: tuple[Piece, ...] = ()


class Passes(NamedTuple):
    """What one layer does in a training step, but for the update."""

    forward: Work = Work()
    data: Work = Work()
    """Gradient of its input."""
    filter: Work = Work()
    """Gradient of its weights."""


def _elements(*counts: float) -> tuple[Piece, ...]:
    return tuple(Piece(1, 4 * count) for count in counts)


def layer_work(layer: Layer, n: int, rules: Rules, choice: Choice = GEMM_ONLY) -> Passes:
    """Return the work of a layer for a batch of `n` samples."""
    if layer.type == "Convolution":
        return _convolution(layer, n, rules, choice)
    if layer.type == "Deconvolution":
        return _deconvolution(layer, n, rules)
    if layer.type in ("Pooling", "AvgPool"):
        return _both_ways(_pooling(layer, n))
    if layer.type == "Dropout":
        return _both_ways(_dropout(layer, n))
    if layer.type == "InnerProduct":
        return _inner_product(layer, n)
    return Passes()


def _both_ways(work: Work) -> Passes:
    """Backward costs what forward does, even where the parent is the data: only conv skips that."""
    return Passes(work, work)


def _pooling(layer: Layer, n: int) -> Work:
    """2·kh·kw FLOPs an output value, maximum and average alike."""
    n *= layer.rows
    outputs = n * math.prod(layer.output)
    flops = 2 * math.prod(layer.kernel) * outputs
    return Work((Piece(1, flops),), _elements(n * math.prod(layer.inputs[0]), outputs))


def _dropout(layer: Layer, n: int) -> Work:
    count = n * layer.rows * math.prod(layer.output)
    return Work((Piece(1, count),), _elements(count, count))


def _inner_product(layer: Layer, n: int) -> Passes:
    """A matrix product [n, i]·[i, o]; both gradients are charged the same, on the data too."""
    n *= layer.rows
    i, o = layer.channels if any(layer.channels) else (math.prod(layer.inputs[0]), layer.output[-1])
    work = Work((Piece(1, 2 * n * i * o),), _elements(n * i, i * o, n * o))
    return Passes(work, work, work)


def _convolution(layer: Layer, n: int, rules: Rules, choice: Choice) -> Passes:
    conv = forward_conv(layer, n, rules)
    grads = gradients(layer, conv, rules)
    if layer.kernel == (1, 1):
        choice = GEMM_ONLY
    work = Passes(
        _priced(conv, choice.forward, rules),
        Work()
        if layer.reads_data
        else _data_gradient(conv, grads.data, grads.holes, choice, rules),
        _priced(grads.filter, choice.filter, rules, holes=grads.holes),
    )
    return work if layer.groups == 1 else Passes(*(_repeat(part, layer.groups) for part in work))


def _repeat(work: Work, count: int) -> Work:
    """A grouped convolution is as many smaller ones; Paleo's own format has no groups."""
    return Work(
        *(tuple(Piece(count * piece.times, piece.amount) for piece in part) for part in work)
    )


def _data_gradient(conv: Conv, data: Conv, holes: float, choice: Choice, rules: Rules) -> Work:
    """Dense over all of h·w, whatever the stride: the holes save nothing.

    A 5×5 VALID convolution on a 5×5 map, AlexNet's first dense layer, is thereby charged 25 times
    the FLOPs that its data gradient needs: the largest single distortion of the model.
    """
    extra = 2 * data.n * data.h * data.w * data.ci * (1 - holes) if holes > 0 else 0
    work = _priced(data, choice.data, rules, extra=extra if rules.adds_holes else 0)
    if choice.data == "ALGO_1" and rules.buffers_algo_1:
        buffer = 8 * conv.n * conv.h * conv.w * conv.kh * conv.kw * conv.co
        work = Work(work.compute, (*work.memory, Piece(1, buffer)))
    return work


def _priced(
    conv: Conv, algorithm: str, rules: Rules, *, extra: float = 0, holes: float = 0
) -> Work:
    if algorithm in ("FFT", "FFT_TILING"):
        return _fft(conv, tiled=algorithm == "FFT_TILING")
    return _gemm(conv, rules, extra, holes)


def _gemm(conv: Conv, rules: Rules, extra: float, holes: float) -> Work:
    """2·kh·kw·ci FLOPs an output value; input, filter and output moved once.

    `holes` is the share of zeros in the filter, which are neither computed nor read.
    """
    weights = conv.kh * conv.kw * conv.ci * conv.co * (1 - holes)
    flops = 2 * weights * conv.oh * conv.ow * conv.n + extra
    h, w = conv.h, conv.w
    if rules.reads_padding:
        h, w = h + 2 * conv.ph, w + 2 * conv.pw
    return Work((Piece(1, flops),), _elements(conv.n * h * w * conv.ci, weights, conv.outputs))


def _fft(conv: Conv, *, tiled: bool) -> Work:
    """Transform inputs and filters, multiply, transform back; the same in both rule sets.

    The inverse transform's memory is charged for one tile instead of all, as in the original.
    """
    n, ci, co = conv.n, conv.ci, conv.co
    if tiled:
        side, area = _TILE, _TILE * _TILE
        tiles = math.ceil(conv.h / _TILE) * math.ceil(conv.w / _TILE)
    else:
        high, wide = max(conv.h + 2 * conv.ph, conv.kh), max(conv.w + 2 * conv.pw, conv.kw)
        side, area, tiles = max(high, wide), high * wide, 1
    flat = 1 in (conv.kh, conv.kw)
    t = 2 ** math.ceil(math.log2(math.sqrt(area)))
    back = 2 * t * 5 * t * math.log2(t) / (2 if flat else 1)
    there = back / 2
    kept = side if flat else area
    compute = (
        Piece(tiles, n * ci * there),
        Piece(tiles, 4 * n * ci * co * area),
        Piece(tiles, n * co * back),
        Piece(1, ci * co * there),
    )
    memory = (
        Piece(tiles, 4 * n * ci * area),
        Piece(tiles, 8 * n * ci * area),
        Piece(1, 4 * ci * co * area),
        Piece(1, 8 * ci * co * kept),
        Piece(tiles, 8 * n * ci * area),
        Piece(tiles, 8 * ci * co * kept),
        Piece(tiles, 8 * n * co * area),
        Piece(1, 8 * n * co * area),
        Piece(1, 4 * conv.outputs),
    )
    return Work(compute, memory)


def _deconvolution(layer: Layer, n: int, rules: Rules) -> Passes:
    """A convolution turned round: its data gradient forward, its forward pass as data gradient.

    The filter gradient is that of the stride-1 convolution which computes the forward pass, less
    the holes of what it reads. GEMM only, and charged on the data too.
    """
    around = forward_conv(layer, n, rules)
    grads = gradients(layer, around, rules)
    data = grads.data
    back = Conv(
        data.ci, data.h, data.w, n * layer.rows, data.oh, data.ow, data.co, data.kh, data.kw,
        data.ph, data.pw,
    )  # fmt: skip
    passes = Passes(
        _data_gradient(around, data, grads.holes, GEMM_ONLY, rules),
        _gemm(around, rules, 0, 0),
        _gemm(back, rules, 0, grads.holes),
    )
    return Passes(*(_repeat(part, layer.groups) for part in passes))


def check_types(net: LayerNet, rules: Rules) -> None:
    """Refuse layers that the rule set does not know.

    In a graph, a dense layer is allowed all the same: it costs what the 1×1 convolution costs that
    the publication's networks use for it.
    """
    if rules.types is None:
        return
    for layer in net.layers:
        known = layer.type in rules.types or (net.from_graph and layer.type != "Deconvolution")
        if not known:
            fix = (
                "; or write it as a 1×1 convolution, which costs the same"
                if layer.type == "InnerProduct"
                else ""
            )
            raise InvalidValueError(
                f"layer {layer.name!r} is of the type {layer.type}, which the rules `paper` do not "
                f'have; use rules="head"{fix}'
            )
