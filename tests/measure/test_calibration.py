"""From benchmark rows to kernels and host costs, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from traincast.errors import InvalidValueError
from traincast.hardware import load_device
from traincast.measure.calibration import (
    fit_updates,
    host_from,
    launch_gap,
    positive_least_squares,
    profile_from_results,
    samples_of,
)
from traincast.measure.rows import kernel_of


def test_a_product_and_its_gradients() -> None:
    row = {"family": "gemm", "m": 3, "n": 5, "k": 7, "batch": 1, "dtype": "bf16"}
    dims = {"forward": (3, 5, 7, 1), "data": (3, 7, 5, 1), "weight": (5, 7, 3, 1)}
    for phase, form in enumerate(("forward", "data", "weight")):
        found = kernel_of({**row, "form": form})
        assert found is not None
        assert found[0] == phase
        assert found[1].dims == dims[form]
        assert found[1].flops == 2 * 3 * 5 * 7
        assert found[1].read + found[1].write == 2 * (15 + 35 + 21)


def test_a_strided_grouped_convolution() -> None:
    row = {
        "family": "conv", "n": 2, "cin": 8, "cout": 12, "size": 9, "kernel": 3, "stride": 2,
        "groups": 4, "layout": "nhwc", "form": "forward", "dtype": "fp32",
    }  # fmt: skip
    found = kernel_of(row)
    assert found is not None
    kernel = found[1]
    # 9 + 2·1 − 3 = 8, over 2, plus 1: 5 × 5 positions; each output takes 8/4 · 9 multiply-adds.
    assert kernel.flops == 2 * (2 * 5 * 5 * 12) * (2 * 9)
    assert kernel.dims == (2 * 25, 3, 2 * 9, 4)
    assert (kernel.window, kernel.stride, kernel.space) == ((3, 3), 2, 25)


def test_a_convolution_with_another_width_and_padding() -> None:
    row = {
        "family": "conv", "n": 1, "cin": 4, "cout": 4, "size": 8, "kernel": 1, "kernel_w": 7,
        "stride": 1, "groups": 1, "layout": "nchw", "form": "forward", "dtype": "fp32",
    }  # fmt: skip
    found = kernel_of(row)
    assert found is not None
    assert found[1].flops == 2 * 64 * 4 * 4 * 7
    patch = kernel_of({**row, "kernel": 4, "kernel_w": 4, "stride": 4, "padding": 0})
    assert patch is not None
    assert patch[1].dims[0] == 4


def test_a_convolution_over_one_axis_of_a_volume() -> None:
    row = {
        "family": "conv", "axes": 3, "n": 2, "cin": 3, "cout": 5, "size": 8, "depth": 4,
        "kernel": 3, "kernel_d": 1, "stride": 1, "groups": 1, "layout": "nchw", "form": "weight",
        "dtype": "bf16",
    }  # fmt: skip
    images, depths = kernel_of(row), kernel_of({**row, "kernel": 1, "kernel_d": 3})
    assert images is not None
    assert depths is not None
    # 2 · 4 · 8 · 8 positions, each with 3 · 5 weights for each of 3 · 3, or 3, neighbours.
    assert images[1].flops == 2 * (2 * 4 * 8 * 8) * (3 * 5) * 9
    assert depths[1].flops == 2 * (2 * 4 * 8 * 8) * (3 * 5) * 3


def test_attention_from_some_positions_to_others_with_a_bias() -> None:
    row = {"family": "attention", "b": 2, "heads": 3, "kv": 3, "seq": 16, "keys": 8, "d": 4,
           "mask": "learned", "causal": False, "form": "both", "dtype": "bf16"}  # fmt: skip
    found = kernel_of(row)
    assert found is not None
    assert found[1].dims == (16, 8, 4, 2 * 3)
    # Five products of 16 · 8 · 4 for each of 6 heads.
    assert found[1].flops == 5 * 2 * (16 * 8 * 4) * 6
    assert found[1].name.endswith(".learned")
    # Beside queries, keys, values, the result and its gradient: a bias of 3 · 16 · 8.
    q, k = 2 * 3 * 16 * 4, 2 * 3 * 8 * 4
    assert found[1].read == 2 * (q + 2 * k + 2 * q + 3 * 16 * 8)


@pytest.mark.parametrize(
    ("row", "moves"),
    [
        ({"family": "image", "op": "permute", "n": 2, "c": 8, "size": 14, "layout": "nhwc"}, True),
        ({"family": "image", "op": "permute", "n": 2, "c": 8, "size": 7, "layout": "nhwc"}, False),
        ({"family": "stream", "op": "heads", "rows": 8, "columns": 64, "seq": 4, "d": 32}, True),
        ({"family": "stream", "op": "heads", "rows": 8, "columns": 64, "seq": 4, "d": 64}, False),
        ({"family": "image", "op": "narrow", "n": 2, "c": 8, "size": 7, "layout": "nchw"}, True),
        ({"family": "image", "op": "narrow", "n": 1, "c": 8, "size": 7, "layout": "nchw"}, False),
        ({"family": "image", "op": "narrow", "n": 1, "c": 8, "size": 7, "layout": "nhwc"}, True),
    ],
)
def test_a_copy_of_what_lies_as_wanted_is_no_sample(row: dict[str, Any], moves: bool) -> None:
    """A single window, a single head, the first channels of one sample: PyTorch moves nothing."""
    assert (kernel_of({**row, "dtype": "fp32"}) is not None) == moves


def test_backward_attention_is_what_both_passes_take_beyond_the_forward() -> None:
    case = {"family": "attention", "b": 1, "heads": 2, "kv": 2, "seq": 64, "d": 32,
            "causal": False, "dtype": "bf16"}  # fmt: skip
    rows = [{**case, "form": "forward", "seconds": 2e-5}, {**case, "form": "both", "seconds": 9e-5}]
    found = {s.key: s.seconds for s in samples_of(rows)}
    assert found["attention.forward|bf16|"] == 2e-5
    assert found["attention.backward|bf16|"] == pytest.approx(7e-5)


def test_a_row_that_failed_is_no_sample() -> None:
    row = {"family": "stream", "op": "add", "rows": 8, "columns": 8, "dtype": "fp32"}
    assert list(samples_of([{**row, "error": "out of memory"}])) == []
    assert len(list(samples_of([{**row, "seconds": 1e-6}]))) == 1


def test_least_squares_of_at_least_zero() -> None:
    columns = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert positive_least_squares(columns, np.array([3.0, 5.0, 7.0])) == pytest.approx([1, 2])
    # The best line through falling values has a negative slope: without it, their mean.
    assert positive_least_squares(columns, np.array([3.0, 2.0, 1.0])) == pytest.approx([2, 0])


def update_row(tensors: int, elements: int, seconds: float) -> dict[str, Any]:
    return {"family": "update", "op": "momentum", "tensors": tensors, "elements": elements,
            "dtype": "fp32", "seconds": seconds}  # fmt: skip


def test_what_an_update_takes_tensor_by_tensor() -> None:
    """As on a CPU; momentum touches eight values a parameter."""
    device = load_device("epyc-genoa-2-cores")
    rows = []
    for tensors in (1, 10, 100, 300):
        for elements in (100, 10_000, 1_000_000):
            moved = tensors * elements * 8 * 4
            seconds = 5e-6 + 1e-7 * tensors + moved / (0.8 * device.memory_bandwidth)
            rows.append(update_row(tensors, elements, seconds))
    found = fit_updates(rows, device)["momentum|fp32"]
    assert tuple(found) == pytest.approx((5e-6, 1e-7, 0.8), rel=1e-6)


def test_what_an_update_takes_in_launches_over_many_tensors() -> None:
    """Of at most 64 tensors and 320 blocks, so that each of the three passes is one launch.

    A full block takes 2.5 µs for each value, 3.5 µs where vectors do not divide the tensor; memory
    gives 0.75 and 0.6 of its bandwidth.
    """
    device = load_device("h200")
    rows = []
    for tensors in (1, 5, 60):
        for elements in (100, 101, 65_536, 65_537, 300_000, 300_003):
            odd = elements % 4 > 0
            chunk, share = (3.5e-6, 0.6) if odd else (2.5e-6, 0.75)
            block = min(elements, 65_536) / 65_536 * chunk
            memory = tensors * elements * 4 / (share * device.memory_bandwidth)
            passes = [((values * block) ** 4 + (values * memory) ** 4) ** 0.25
                      for values in (2, 3, 3)]  # fmt: skip
            rows.append(update_row(tensors, elements, 3 * 2e-6 + sum(passes)))
    found = fit_updates(rows, device)["momentum|fp32"]
    assert tuple(found) == pytest.approx((2e-6, 2.5e-6, 0.75, 3.5e-6, 0.6), rel=0.03)


def test_the_host_by_op_and_by_optimizer() -> None:
    def row(op: str, form: str, seconds: float, **more: Any) -> dict[str, Any]:
        return {"family": "host", "op": op, "form": form, "seconds": seconds, "autocast": False,
                "dtype": "fp32", **more}  # fmt: skip

    found = host_from([
        row("add", "infer", 8e-6), row("add", "forward", 10e-6), row("add", "backward", 20e-6),
        row("momentum", "step", 60e-6, tensors=10), row("momentum", "step", 150e-6, tensors=100),
    ])  # fmt: skip
    assert found is not None
    assert found.ops["add"] == (8e-6, 10e-6, 20e-6)
    assert found.update["momentum"] == pytest.approx((50e-6, 1e-6))
    assert host_from([]) is None


def test_the_gap_of_a_launch() -> None:
    rows = [{"family": "launch", "op": "device", "seconds": 2e-6},
            {"family": "launch", "op": "graph", "seconds": 1.2e-6}]  # fmt: skip
    assert launch_gap(rows) == pytest.approx(0.8e-6)
    assert launch_gap(rows[:1]) == 0


def test_results_without_a_kernel_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="no measured kernel"):
        profile_from_results({"device": "h200"}, [], device="h200")
