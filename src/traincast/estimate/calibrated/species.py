"""Which model prices a kernel, and by which features of its shape.

A key is `species|type|layout`: `conv.forward|bf16|nhwc`, `native_layer_norm|fp32|`. The species of
a matrix kernel is its family and phase; of any other kernel, the aten op that runs it. What was
not measured falls back step by step: another layout, a type of the same width, the family.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import numpy as np

from traincast.estimate.program import FAMILIES, Floats, Ints, Kernels
from traincast.estimate.roofline import fill
from traincast.graph.precision import Precision
from traincast.hardware import Device

PHASES = ("forward", "data", "weight")
_IMAGES = ("batch_norm", "pool", "upsample", "group_norm", "convolution_backward.bias")
_EITHER = ("mean", "cat", "convolution.bias", "copy_.narrow")
"""Measured on images and on plain matrices: with a layout, and without."""
_HALF = ("bf16", "fp16")
_FULL = ("tf32", "fp32")
REDUCED = (*_HALF, "tf32")
"""Types that matrix units may take and the others do not."""
ROWWISE = ("norm", "softmax", "reduction")
_LOAD = 16
"""Bytes that one load takes. A product whose rows do not begin at such places, as with a vocabulary
of 50,257, runs in kernels of older GPUs, six times slower on an H200."""


def type_of(each: float, precision: Precision, matrix: bool) -> str:
    """Return the type that a kernel computes in: for vector kernels tf32 is fp32."""
    if each == 2:
        return "fp16" if precision.compute == "float16" else "bf16"
    return "tf32" if matrix and precision.peak == "tf32" else "fp32"


_SIZES: Mapping[tuple[float, ...], str] = {(1, 1): "1", (3, 3): "3"}
_SPACES = {0: "conv", 1: "lineconv", 2: "conv", 3: "volumeconv"}


def species_of(
    name: str,
    family: str,
    phase: int,
    dims: Sequence[float],
    each: float,
    depth_of_group: float,
    window: Iterable[float],
    axes: float = 2,
    dilation: float = 1,
) -> str:
    """Return the species; `each` is bytes of an element.

    The last four are cin/g of a convolution, its window if its stride is 1 (else empty), the axes
    that it moves along and the distance of its values.
    """
    groups = dims[3]
    if family == "gemm":
        # Whatever lies side by side in memory: inputs and outputs of a layer, not its samples.
        sides = dims[:2] if phase == 2 and groups <= 1 else dims[1:3]
        odd = ".odd" if any(side * each % _LOAD for side in sides) else ""
        return f"gemm.batched{odd}" if groups > 1 else f"gemm.{PHASES[phase]}{odd}"
    if family == "conv":
        kind = "conv" if groups <= 1 else "dwconv" if depth_of_group <= 1 else "gconv"
        # Libraries have algorithms of their own for the two most common windows, and lack them
        # for sequences, for volumes and for windows with gaps.
        size = ""
        if kind == "conv":
            size = _SIZES.get(tuple(window), "")
            kind = "gapconv" if dilation > 1 else _SPACES[int(axes)]
            # A window of one position needs no gaps, and over sequences it is a plain product.
            if size == "1":
                kind = "conv" if axes == 2 else kind.replace("gap", "line")
            size = size if kind == "conv" or kind + size == "lineconv1" else ""
        return f"{kind}{size}.{PHASES[phase]}"
    if family in ("attention", "rnn"):
        mask = name.partition(".")[2] if family == "attention" else ""
        return ".".join(filter(None, (family, mask, "backward" if phase else "forward")))
    return name


def acting(phase: Ints, stride: Floats) -> Ints:
    """Return the phases whose kernels run.

    A transposed convolution (stride below 1) runs forward what the convolution that it mirrors
    runs for its data gradient, and the other way round.
    """
    found: Ints = np.where((stride < 1) & (phase < 2), 1 - phase, phase)
    return found


def key_of(species: str, dtype: str, layout: str) -> str:
    """Return the key of a model; only kernels over images tell layouts apart."""
    told = (
        "conv" in species.partition(".")[0]
        or any(part in species for part in _IMAGES)
        or species in _EITHER
    )
    return f"{species}|{dtype}|{layout if told else ''}"


def windows_of(key: str) -> tuple[str, ...]:
    """Return the keys of a convolution with either common window and with any other, or none."""
    head, dot, rest = key.partition(".")
    return tuple(f"{kind}{dot}{rest}" for kind in _WINDOWS) if head in _WINDOWS else ()


_WINDOWS = ("conv1", "conv3", "conv")


def keys_of(
    kernels: Kernels,
    precision: Precision,
    layout: str = "",
    training: bool = True,
    converted: Container[str] = (),
) -> list[str]:
    """Return the key of every kernel; without training, batch norm only scales and shifts.

    Matrix kernels of a type in `converted` are those of fp32: no unit of the device takes it.
    """
    gi, phases = group_depth(kernels), acting(kernels.phase, kernels.stride)
    lowered = bool(kernels.nhwc.any())
    found = []
    for i, name in enumerate(kernels.names):
        family = FAMILIES[kernels.family[i]]
        matrix = family in ("gemm", "conv", "attention", "rnn")
        dtype = type_of(float(kernels.each[i]), precision, matrix)
        phase = int(phases[i])
        if family == "gemm" and precision.peak == "fp8" and dtype == "bf16":
            dtype = "fp8"
        if matrix and dtype in converted:
            dtype = "fp32"
        each, dims = float(kernels.each[i]), kernels.dims[i]
        window = kernels.window[i] if kernels.stride[i] == 1 else ()
        space = float(kernels.axes[i]), float(kernels.dilation[i])
        species = species_of(name, family, phase, dims, each, float(gi[i]), window, *space)
        if not training and species.endswith("batch_norm"):
            # Rows without an image are scaled and shifted like any broadcast.
            species = f"{species}.infer" if kernels.space[i] else "mul.strided"
        order = "nhwc" if kernels.nhwc[i] else "nchw"
        found.append(key_of(species, dtype, order if lowered else layout))
    return found


def group_depth(kernels: Kernels) -> Floats:
    """Return input channels of one group, for convolutions; 0 elsewhere."""
    window = kernels.window.prod(axis=1)
    conv = kernels.family == FAMILIES.index("conv")
    by_phase = np.choose(
        acting(np.minimum(kernels.phase, 2), kernels.stride),
        (kernels.dims[:, 2] / window, kernels.dims[:, 1], kernels.dims[:, 1] / window),
    )
    depth: Floats = np.where(conv, by_phase, 0.0)
    return depth


def work_of(kernels: Kernels, device: Device | None) -> tuple[Floats, Floats]:
    """Return FLOPs over their fill of the device (1 without one), and bytes, of every kernel."""
    traffic = kernels.read + kernels.write
    if device is None:
        return kernels.flops * kernels.done, traffic
    flops = kernels.flops * kernels.done
    # Its multiprocessors take a tile each; a CPU's cores divide products finely.
    in_waves = device.is_gpu
    families = ("conv", "rnn") if in_waves else ("conv", "rnn", "gemm")
    smooth = np.isin(kernels.family, [FAMILIES.index(f) for f in families])
    flops[smooth] /= fill(kernels.dims[smooth], device.units)
    if in_waves:
        for family, reached in (("gemm", waves), ("attention", attention_waves)):
            own = kernels.family == FAMILIES.index(family)
            flops[own] /= reached(kernels.dims[own], device.units)
    return flops, traffic


def attention_waves(dims: Floats, units: int) -> Floats:
    """Return what fused attention reaches by its tiles, in (0, 1]: whole blocks of 64 keys.

    A tile has 128 or 64 queries of one head, the latter with less for each key that is loaded.
    """
    queries, keys, _, heads = np.maximum(dims.T, 1.0)
    best: Floats = np.zeros(len(queries))
    for length, reached in ((128.0, 1.0), (64.0, 0.9)):
        tiles = np.ceil(queries / length) * heads
        filled = queries * heads / (np.ceil(tiles / units) * units * length)
        best = np.maximum(best, reached * filled)
    best *= keys / (np.ceil(keys / 64.0) * 64.0)
    return best


_TILES: Mapping[tuple[int, int], float] = {
    (128, 256): 1.0, (256, 128): 1.0, (128, 192): 1.0, (192, 128): 1.0, (128, 128): 0.95,
    (64, 256): 0.9, (256, 64): 0.9, (64, 128): 0.8, (128, 64): 0.8, (64, 64): 0.6,
    (32, 128): 0.5, (128, 32): 0.5, (64, 32): 0.35, (32, 64): 0.35,
}  # fmt: skip
"""Tiles that libraries have, and what each reaches beside the largest: a multiprocessor loads
rows + columns values for rows × columns products."""
_SPLITS = (1, 2, 3, 4, 6, 8, 16)
"""Parts that the depth of a product is split into, to have more tiles."""
_SPLIT_COST, _FILLING, _SHALLOWEST = 0.9, 64.0, 128.0
"""What a split product reaches beside a whole one; depth that filling the pipeline is worth;
depth that is not split any further."""
_NARROW = 16
_SHAPED = np.array([
    (rows, columns, split, reached * (1.0 if split == 1 else _SPLIT_COST))
    for (rows, columns), reached in _TILES.items() for split in _SPLITS
]).T[:, :, None]  # fmt: skip


def waves(dims: Floats, units: int) -> Floats:
    """Return what a product reaches by its tiles, in (0, 1]: the best of what libraries have.

    A wave is one tile on every multiprocessor. The last wave takes as long as the others however
    few tiles are left for it, and a tile at the edge as long as a whole one.
    """
    height, width, split, reached = _SHAPED
    rows, columns, depth, batch = np.maximum(dims.T, 1.0)[:, None, :]
    tiles = np.ceil(rows / height) * np.ceil(columns / width) * batch * split
    filled = rows * columns * batch * split / (np.ceil(tiles / units) * units * height * width)
    found = reached * filled * depth / (depth + _FILLING * split)
    found[np.broadcast_to((split > 1) & (depth < _SHALLOWEST * split), found.shape)] = 0.0
    best: Floats = found.max(axis=0)
    # Between few channels, as heads that are mixed, libraries have kernels without such tiles.
    few = (np.minimum(dims[:, 1], dims[:, 2]) < _NARROW) & (dims[:, 3] <= 1)
    best[few] = np.maximum(best[few], fill(dims[few], units))
    return best


_CONVOLUTIONS = {
    "dwconv": ("gconv", "conv", "conv3"),
    "gconv": ("conv", "conv3"),
    "conv1": ("conv", "conv3"),
    "conv3": ("conv", "conv1"),
    "conv": ("conv3", "conv1"),
    "lineconv": ("conv", "conv3", "conv1"),
    "lineconv1": ("lineconv", "conv1", "conv", "conv3"),
    "volumeconv": ("conv", "conv3", "conv1"),
    "gapconv": ("conv", "conv3", "conv1"),
}
"""Which convolutions stand in for others, the most alike first."""


def fallbacks(key: str, family: str) -> Iterator[str]:
    """Yield keys to look for, from the very key to the family's."""
    species, dtype, layout = key.split("|")
    types = [dtype]
    if dtype in ("fp8", *_HALF):
        types += [t for t in _HALF if t != dtype]
    elif dtype in _FULL:
        types += [t for t in ("fp32", "tf32") if t != dtype]
    layouts = [layout] + [v for v in ("nhwc", "nchw", "") if v != layout]
    names = [species]
    head, _, phase = species.partition(".")
    if family == "conv":
        names += [f"{kind}.{phase}" for kind in _CONVOLUTIONS[head]]
    if family == "attention":
        names.append(f"{head}.{phase.rpartition('.')[2]}")
    if phase == "transpose":
        names.append("copy_.permute")
    if head == "cat":
        names.append(head)
    if phase in ("strided", "mixed", "turned"):
        names += [f"mul.{phase}", f"add.{phase}"]
        names += [f"{head}.strided", "mul.strided", "add.strided"] if phase == "turned" else []
        names.append(head)
    if family == "gemm":
        names += [species.removesuffix(".odd"), "gemm.batched", "gemm.forward"]
    if family == "rnn":
        names += ["gemm.forward"]
    names.append(family)
    for name in names:
        for kind in types:
            for order in layouts:
                yield f"{name}|{kind}|{order}"
    for name in names:
        for kind in ("fp32", "bf16", "tf32", "fp16"):
            yield f"{name}|{kind}|"
    yield "pointwise|fp32|"


def features_of(family: str, kernels: Kernels, index: Ints, units: int) -> Floats:
    """Return the features of some kernels of one family: logarithms of their shape, base 2.

    `units` are the multiprocessors of the device that runs them.
    """
    dims = np.maximum(kernels.dims[index], 1.0)
    if family == "conv":
        window = kernels.window[index]
        area = window.prod(axis=1)
        phase = acting(np.minimum(kernels.phase[index], 2), kernels.stride[index])
        rows = np.choose(phase, (dims[:, 0], dims[:, 0], dims[:, 2]))
        go = np.choose(phase, (dims[:, 1], dims[:, 2] / area, dims[:, 0]))
        gi = np.choose(phase, (dims[:, 2] / area, dims[:, 1], dims[:, 1] / area))
        step = kernels.stride[index]
        step = np.where(step < 1, 1.0 / np.maximum(step, 1e-3), step) / kernels.dilation[index]
        columns = [rows, gi, go, dims[:, 3], window[:, 0], window[:, 1], step]
        logs = [np.log2(np.maximum(c, 1e-3)) for c in columns]
        space = kernels.space[index]
        logs.append(np.log2(np.maximum(space, 1.0)))
        side = np.maximum(space, 1.0) ** (1.0 / np.maximum(kernels.axes[index], 1.0))
        aligned = [_aligned(gi, 64), _aligned(go, 64), _aligned(side, 128), _uneven(gi)]
        return np.column_stack([*logs, *aligned])
    if family == "gemm":
        sides = (_aligned(dims[:, side], 128) for side in range(3))
        logs = [np.log2(dims), *sides, 4.0 * np.log2(tiled(dims, units))]
        return np.column_stack([*logs, _loads(dims, kernels.phase[index], kernels.each[index])])
    if family == "rnn":
        return _logs([dims, np.maximum(kernels.space[index], 1.0)])
    if family == "attention":
        causal = 2.0 * (kernels.done[index] < 1.0)
        return np.column_stack([np.log2(dims), causal, _aligned(dims[:, 1])])
    traffic = np.maximum(kernels.read[index] + kernels.write[index], 1.0)
    if family == "norm":
        space = np.maximum(kernels.space[index], 1.0)
        logs = np.log2(np.column_stack([dims[:, 0], dims[:, 1], space]))
        return np.column_stack([logs, _aligned(space), _aligned(dims[:, 1])])
    if family in ROWWISE:
        ends = _aligned(dims[:, 0]), _aligned(dims[:, 1])
        return np.column_stack([np.log2(dims[:, :3]), *ends])
    if family == "pool":
        return np.column_stack([np.log2(traffic), np.log2(kernels.window[index].prod(axis=1))])
    if family in ("copy", "fill"):
        return np.column_stack([np.log2(traffic), np.log2(dims[:, 0])])
    if family in ("concat", "interpolate"):
        return _logs([traffic, dims[:, :2]])
    if family == "gather":
        return _logs([traffic, dims[:, :3]])
    return np.log2(traffic)[:, None]


def _logs(columns: Sequence[Floats]) -> Floats:
    logs: Floats = np.log2(np.column_stack(columns))
    return logs


def _aligned(length: Floats, most: int = 8) -> Floats:
    """Return how often 2 divides a length, up to `most`.

    Matrix units want multiples of 8, and tiles of 64 or 128 have no rest then.
    """
    whole = np.rint(length).astype(np.int64)
    result: Floats = np.zeros(len(whole))
    power = 2
    while power <= most:
        result += whole % power == 0
        power *= 2
    return result


def _loads(dims: Floats, phase: Ints, each: Floats) -> Floats:
    """Return log2 of the bytes that divide every row of a product's matrices, up to `_LOAD`."""
    rows, columns, depth, groups = dims.T
    first = np.where((phase == 2) & (groups <= 1), rows, depth)
    ends = [_aligned(side * each, _LOAD) for side in (first, columns)]
    least: Floats = np.minimum(*ends)
    return least


_WHOLE = ((128, 128), (128, 256), (256, 128), (64, 128), (128, 64), (64, 64), (64, 256))


def tiled(dims: Floats, units: int) -> Floats:
    """Return how much of the last wave's tiles a product of rows × columns needs, at best.

    A wave is one tile on every multiprocessor; a library has tiles of several sizes.
    """
    rows, columns, _, batch = np.maximum(dims.T, 1.0)
    best: Floats = np.zeros(len(rows))
    for height, width in _WHOLE:
        tiles = np.ceil(rows / height) * np.ceil(columns / width) * batch
        waves = np.ceil(tiles / units) * units * height * width
        best = np.maximum(best, rows * columns * batch / waves)
    return best


def _uneven(length: Floats) -> Floats:
    """Return 1 for what is no power of two: grouped convolutions then pad every group."""
    power = np.log2(np.maximum(length, 1.0))
    result: Floats = (np.abs(power - np.rint(power)) > 1e-6).astype(np.float64)
    return result


def scales_of(key: str, family: str) -> Floats:
    """Return the distances over which shapes of one kind are alike, before they are stretched."""
    return SCALES.get(key.partition(".")[0], SCALES.get(family, STREAM_SCALES))


SCALES: Mapping[str, Floats] = {
    "conv": np.array([2.0, 1.5, 1.5, 1.5, 1.0, 1.0, 1.0, 3.0, 4.0, 4.0, 3.0, 4.0]),
    "gconv": np.array([2.0, 1.5, 1.5, 2.0, 1.0, 1.0, 1.0, 3.0, 2.5, 2.5, 3.0, 0.5]),
    "dwconv": np.array([2.0, 1.5, 1.5, 2.0, 1.0, 1.0, 1.0, 3.0, 2.5, 2.5, 3.0, 4.0]),
    "gemm": np.array([1.5, 1.5, 1.5, 2.0, 6.0, 6.0, 6.0, 2.0, 1.0]),
    "attention": np.array([1.5, 1.5, 1.0, 2.0, 2.0, 3.0]),
    "rnn": np.array([2.0, 2.0, 2.0, 2.0, 3.0]),
    "norm": np.array([2.0, 2.0, 3.0, 3.0, 2.0]),
    "softmax": np.array([2.0, 2.0, 3.0, 4.0, 2.0]),
    "reduction": np.array([2.0, 2.0, 3.0, 4.0, 4.0]),
    "pool": np.array([2.0, 1.5]),
    "copy": np.array([2.0, 1.5]),
    "concat": np.array([2.0, 1.5, 1.5]),
    "interpolate": np.array([2.0, 1.5, 1.5]),
    "fill": np.array([2.0, 2.0]),
    "gather": np.array([2.0, 2.0, 2.0, 3.0]),
}
"""Distances over which shapes are alike, in the features' units; stretched in fitting."""
STREAM_SCALES = np.array([2.0])
