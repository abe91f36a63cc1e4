"""Configurations and what passes between layers, against counting elements one by one."""

import itertools
from math import comb

import numpy as np
import pytest

from traincast.graph import Graph, Op, Size, Tensor
from traincast.parallel.configurations import Configurations, configurations
from traincast.parallel.layers import Edge, Layer, Network, network_of
from traincast.parallel.overlap import traffic
from traincast.parallel.strategy import LayerSplit, bounds

B = Size(batch=1)


def _tensor(name: str, *shape: int | Size, role: str = "activation") -> Tensor:
    sizes = tuple(s if isinstance(s, Size) else Size(s) for s in shape)
    dims = {4: ("sample", "channel", "height", "width"), 2: ("sample", "channel")}
    named = dims.get(len(shape), ()) if role == "input" else ()
    return Tensor(name=name, shape=sizes, role=role, dims=named)


def _conv(name: str, x: str, stride: int = 1, pad: int = 1, groups: int = 1) -> Op:
    attrs = {"stride": (stride,) * 2, "padding": (pad,) * 2, "dilation": (1, 1), "groups": groups}
    return Op(name=name, kind="conv", inputs=(x, f"{name}.w"), outputs=(f"{name}:o",), attrs=attrs)


def _chain(*, stride: int = 1, groups: int = 1, pad: int = 1, kernel: int = 3) -> Network:
    """Return a convolution, a second one behind a ReLU, and a linear layer behind a flattening."""
    side = (7 + 2 * pad - kernel) // stride + 1
    tensors = [
        _tensor("x", B, 2, 7, 7, role="input"),
        _tensor("a.w", 4, 2, 3, 3, role="parameter"),
        _tensor("a:o", B, 4, 7, 7),
        _tensor("r:o", B, 4, 7, 7),
        _tensor("b.w", 6, 4 // groups, kernel, kernel, role="parameter"),
        _tensor("b:o", B, 6, side, side),
        _tensor("f:o", B, 6 * side * side),
        _tensor("c.w", 5, 6 * side * side, role="parameter"),
        _tensor("c:o", B, 5),
    ]
    ops = (
        _conv("a", "x"),
        Op(name="r", kind="pointwise", inputs=("a:o",), outputs=("r:o",), attrs={"fn": "relu"}),
        _conv("b", "r:o", stride, pad, groups),
        Op(name="f", kind="view", inputs=("b:o",), outputs=("f:o",), attrs={"fn": "reshape"}),
        Op(name="c", kind="linear", inputs=("f:o", "c.w"), outputs=("c:o",)),
    )
    return network_of(Graph("chain", ops, {t.name: t for t in tensors}), 6, 0)


def _box(layer: Layer, degrees: dict[str, int], part: int) -> dict[str, range]:
    place = LayerSplit(layer.name, layer.kind, degrees).place(part)
    return {
        dim: range(*bounds(length, degrees.get(dim, 1), place.get(dim, 0)))
        for dim, length in layer.dims.items()
    }


def _read(name: str, own: dict[str, range], kernel: int, stride: int, pad: int, groups: int):
    """Return which elements of its input a part of layer b or c reads, by the definition."""
    if name == "c":
        return {"sample": own["sample"], "channel": None, "height": None, "width": None}
    rows = {}
    for dim in ("height", "width"):
        read = {o * stride - pad + k for o in own[dim] for k in range(kernel)}
        rows[dim] = range(min(read), max(read) + 1)  # what lies between is sent along
    channel = None
    if groups > 1:
        channel = sorted({g for o in own["channel"] for g in _inputs(o, groups)})
    return {"sample": own["sample"], "channel": channel, **rows}


def _inputs(out: int, groups: int) -> range:
    group = out * groups // 6
    return range(group * 4 // groups, (group + 1) * 4 // groups)


@pytest.mark.parametrize(
    ("stride", "groups", "pad", "kernel"), [(1, 1, 1, 3), (2, 1, 1, 3), (1, 2, 2, 5), (2, 1, 0, 1)]
)
@pytest.mark.parametrize(("devices", "per_node"), [(4, 4), (4, 2), (6, 3)])
def test_traffic_equals_counting(
    stride: int, groups: int, pad: int, kernel: int, devices: int, per_node: int
) -> None:
    net = _chain(stride=stride, groups=groups, pad=pad, kernel=kernel)
    assert [layer.name for layer in net.layers] == ["a", "b", "c"]
    for edge in net.edges:
        u, v = net.layers[edge.source], net.layers[edge.target]
        cu, cv = (configurations(layer, devices, "all") for layer in (u, v))
        got = traffic(edge, cu, cv, (u.dims, v.dims), per_node)
        rng = np.random.default_rng(devices)
        for _ in range(60):
            i, j = int(rng.integers(len(cu.degrees))), int(rng.integers(len(cv.degrees)))
            moved = _moved(u, v, cu, cv, i, j, (kernel, stride, pad, groups))
            node = np.arange(devices) // per_node
            same = node[:, None] == node[None, :]
            here = np.eye(devices, dtype=bool)
            near = np.where(same & ~here, moved, 0)
            far = np.where(~same, moved, 0)
            assert got.near[i, j] == near.sum()
            assert got.far[i, j] == far.sum()
            assert got.port[i, j] == max(near.sum(0).max(), near.sum(1).max())
            by = np.array(
                [[far[node == a][:, node == b].sum() for b in set(node)] for a in set(node)]
            )
            assert got.node[i, j] == max(by.sum(0).max(), by.sum(1).max())


def _moved(
    u: Layer, v: Layer, cu: Configurations, cv: Configurations, i: int, j: int, how: tuple[int, ...]
) -> np.ndarray:
    devices = cu.devices
    moved = np.zeros((devices, devices))
    for s, d in itertools.product(range(int(cu.parts[i])), range(int(cv.parts[j]))):
        own = _box(u, cu.named(i), s)
        read = _read(v.name, _box(v, cv.named(j), d), *how)
        volume = 1
        for dim, span in own.items():
            volume *= len(span) if read[dim] is None else len(set(span) & set(read[dim]))
        moved[s, d] = volume
    return moved


@pytest.mark.parametrize(("devices", "fc", "image"), [(4, 6, 15), (8, 10, 35), (16, 15, 70)])
def test_numbers_of_configurations(devices: int, fc: int, image: int) -> None:
    """Power-of-two tuples with product at most N: (m + d over d)."""
    two = Layer("fc", "linear", {"sample": 512, "channel": 4096}, {})
    four = Layer("c", "conv", {"sample": 512, "channel": 64, "height": 64, "width": 64}, {})
    m = devices.bit_length() - 1
    assert len(configurations(two, devices).degrees) == fc == comb(m + 2, 2)
    assert len(configurations(four, devices).degrees) == image == comb(m + 4, 4)


def test_any_degrees_and_short_dims() -> None:
    layer = Layer("fc", "linear", {"sample": 2, "channel": 3}, {})
    rows = configurations(layer, 6, "all").degrees.tolist()
    assert sorted(rows) == [[1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3]]


def _same(net: Network, edge: Edge, degrees: dict[str, int]) -> float:
    u, v = net.layers[edge.source], net.layers[edge.target]
    cu, cv = configurations(u, 4), configurations(v, 4)
    got = traffic(edge, cu, cv, (u.dims, v.dims), 4)
    return float(got.near[cu.nearest(degrees), cv.nearest(degrees)])


def test_nothing_passes_under_equal_sample_splits_but_halos_do() -> None:
    net = _chain()
    assert _same(net, net.edges[0], {"sample": 4}) == 0
    # Three borders between four strips of 7 rows, one row needed from either side: 6 rows.
    assert _same(net, net.edges[0], {"height": 4}) == 6 * 6 * 4 * 7
