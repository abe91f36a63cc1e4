"""How far tiles fill a device, by hand; and which kernels stand for which."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.estimate.calibrated.species import (
    attention_waves,
    features_of,
    keys_of,
    waves,
)
from traincast.estimate.program import kernel_table
from traincast.graph import KINDS
from traincast.graph.kinds import Arg, Case
from traincast.graph.precision import PRECISIONS

H200 = 132


def product(rows: int, columns: int, depth: int) -> float:
    return float(waves(np.array([[rows, columns, depth, 1.0]]), H200)[0])


def test_one_wave_of_tiles_is_better_than_two_half_empty_ones() -> None:
    """16 × 8 tiles of 128 × 128 are one wave on 132 multiprocessors; 18 × 8 are two."""
    whole = 0.95 * 128 / 132 * 1024 / (1024 + 64)
    assert product(2048, 1024, 1024) == pytest.approx(whole)
    # 12 × 8 tiles of 192 × 128 leave 36 multiprocessors idle; splitting gains little.
    more = product(2304, 1024, 1024)
    assert 96 / 132 * 1024 / 1088 <= more < 0.85 * whole


def test_deep_products_are_split() -> None:
    """One tile of 128 × 128 would leave 131 multiprocessors idle."""
    alone = 0.95 / 132
    assert product(128, 128, 65536) > 8 * alone


@given(st.integers(1, 5000), st.integers(1, 3000), st.integers(16, 9000))
def test_a_longer_product_never_takes_less(rows: int, columns: int, depth: int) -> None:
    small = rows * columns / product(rows, columns, depth)
    large = (rows + 1) * columns / product(rows + 1, columns, depth)
    assert large >= small * (1 - 1e-9)


def test_attention_pads_to_blocks() -> None:
    """A head of 128 queries is one tile of 128; 64 more keys cost what one more does."""

    def took(queries: int, keys: int, heads: int) -> float:
        dims = np.array([[queries, keys, 64.0, heads]], dtype=float)
        return float(queries * keys * heads / attention_waves(dims, H200)[0])

    assert took(128, 128, 132) == pytest.approx(128 * 128 * 132)
    assert took(128, 129, 132) == took(128, 192, 132)
    # Three waves of tiles of 64 queries, at 0.9 of the speed, beat two of 128.
    assert took(128, 128, 133) == pytest.approx(3 * 64 * 132 * 128 / 0.9)


def arg(*shape: int, role: str = "activation") -> Arg:
    return Arg(shape, int(np.prod(shape)), 4, True, role)


def conv(transposed: bool, image: int, cin: int, cout: int) -> Case:
    """4 × 4 windows, stride 2: from `image` to half of it, or to twice as much."""
    size = 2 * image if transposed else image // 2
    weight = (cin, cout, 4, 4) if transposed else (cout, cin, 4, 4)
    attrs = {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": 1,
             "transposed": transposed}  # fmt: skip
    ins = (arg(8, cin, image, image), arg(*weight, role="parameter"))
    return Case(attrs, ins, (arg(8, cout, size, size),))


@pytest.mark.parametrize(("phase", "mirrored"), [(0, 1), (1, 0)])
def test_a_transposed_convolution_is_the_one_that_it_mirrors(phase: int, mirrored: int) -> None:
    """cuDNN runs it by the other's data gradient, and its data gradient by the other's forward."""
    turned = KINDS["conv"].costs(conv(True, 16, 128, 64))
    plain = KINDS["conv"].costs(conv(False, 32, 64, 128))
    one = kernel_table([(0, phase, (turned.forward, turned.data)[phase][0])])
    other = kernel_table([(0, mirrored, (plain.forward, plain.data)[mirrored][0])])
    precision, all_ = PRECISIONS["fp32"], np.arange(1)
    assert keys_of(one, precision, "nchw") == keys_of(other, precision, "nchw")
    found, wanted = (features_of("conv", table, all_, H200) for table in (one, other))
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("space", "kernel", "dilation", "species"),
    [
        ((32, 32), (3, 3), 1, "conv3.forward"),
        ((32, 32), (3, 3), 2, "gapconv.forward"),
        ((4096,), (3,), 1, "lineconv.forward"),
        ((4096,), (1,), 1, "lineconv1.forward"),
        ((8, 32, 32), (3, 3, 3), 1, "volumeconv.forward"),
        ((32, 32), (1, 1), 1, "conv1.forward"),
    ],
)
def test_convolutions_are_told_apart(
    space: tuple[int, ...], kernel: tuple[int, ...], dilation: int, species: str
) -> None:
    axes = len(space)
    attrs = {"stride": (1,) * axes, "padding": tuple(dilation * (k // 2) for k in kernel),
             "dilation": (dilation,) * axes, "groups": 1}  # fmt: skip
    ins = (arg(2, 16, *space), arg(32, 16, *kernel, role="parameter"))
    costs = KINDS["conv"].costs(Case(attrs, ins, (arg(2, 32, *space),)))
    table = kernel_table([(0, 0, costs.forward[0])])
    assert keys_of(table, PRECISIONS["fp32"], "nchw") == [f"{species}|fp32|nchw"]
