"""The roofline: its formula written out by hand, and what must hold for any kernel and device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast import predict
from traincast.errors import UnknownNameError
from traincast.estimate.intervals import JUDGED_ON, MEASURED, interval
from traincast.estimate.optimizer import OPTIMIZERS
from traincast.estimate.program import FAMILIES, Kernels, kernels_of, program_of
from traincast.estimate.registry import estimator_named
from traincast.estimate.roofline import TIERS, Roofline, fill
from traincast.graph.precision import PRECISIONS
from traincast.hardware import TIERS as DEVICE_TIERS
from traincast.hardware import Device, all_devices, load_device
from traincast.ingest import zoo_graph
from traincast.simulate.step import update_seconds

ROOFLINE = Roofline()


def device(**changes: Any) -> Device:
    """Return a round made-up accelerator: 1 PFLOP/s, 100 TFLOP/s, 1 TB/s, 100 units."""
    made = Device(
        name="round",
        title="Round",
        vendor="None",
        tier="datacenter-gpu",
        architecture="none",
        year=2025,
        memory_bytes=80e9,
        memory_bandwidth=1e12,
        matrix_flops={"bf16": 1e15, "tf32": 5e14},
        vector_flops={"fp32": 1e14},
        units=100,
        clock_hz=1e9,
    )
    return replace(made, **changes)


def kernel(
    family: str, *, dims: tuple[float, float, float, float] = (0, 0, 0, 0), **columns: float
) -> Kernels:
    """Return a table of one kernel; a share that is not given is 1, any other column 0."""
    given_columns = {name: np.array([float(value)]) for name, value in columns.items()}
    zero = np.zeros(1, dtype=np.int64)
    made = {
        **{name: np.ones(1) for name in Kernels._fields},
        **{name: np.zeros(1) for name in ("flops", "ops", "read", "write", "extra", "workspace")},
        "op_class": zero,
        "phase": zero,
        "family": zero + FAMILIES.index(family),
        "dims": np.array([dims], dtype=np.float64),
        "names": ("kernel",),
    }
    return Kernels(**(made | given_columns))


def seconds(kernels: Kernels, on: Device, precision: str = "bf16", layout: str = "nhwc") -> float:
    return float(ROOFLINE.price(kernels, on, PRECISIONS[precision], layout).seconds[0])


EFF = TIERS["datacenter-gpu"]


def test_a_large_product_is_bound_by_the_matrix_units() -> None:
    """8192³ in bf16: 1.0995e12 FLOPs, 64 × 64 tiles × 8 deep splits on 100 units."""
    n = 8192
    side = kernel("gemm", flops=2.0 * n**3, read=4.0 * n * n, write=2.0 * n * n, dims=(n, n, n, 1))
    waves = 64 * 64 * 8 / 100
    share = 1 / (1 + 1 / (2 * waves) + 32 / n + 16 / n + 16 / n)
    assert seconds(side, device()) == pytest.approx(
        2 * n**3 / (1e15 * EFF.gemm * share) + EFF.gap_s
    )
    priced = ROOFLINE.price(side, device(), PRECISIONS["bf16"])
    assert priced.bound[0] == 0


def test_a_long_elementwise_kernel_is_bound_by_memory() -> None:
    """A relu over 1e9 bf16 values moves 4 GB: 4 ms at 1 TB/s, more at what is reached of it."""
    relu = kernel("pointwise", ops=1e9, read=2e9, write=2e9)
    assert seconds(relu, device()) == pytest.approx(4e-3 / EFF.bandwidth + EFF.gap_s)
    assert ROOFLINE.price(relu, device(), PRECISIONS["bf16"]).bound[0] == 1


def test_costly_arithmetic_is_bound_by_the_ordinary_units() -> None:
    mish = kernel("pointwise", ops=1e13, read=2e9, write=2e9)
    assert seconds(mish, device()) == pytest.approx(1e13 / (1e14 * EFF.vector) + EFF.gap_s)


def test_a_tiny_kernel_costs_its_launch() -> None:
    tiny = kernel("pointwise", ops=10, read=40, write=40)
    assert seconds(tiny, device()) == pytest.approx(EFF.gap_s, rel=1e-3)
    assert ROOFLINE.price(tiny, device(), PRECISIONS["bf16"]).bound[0] == 2


def test_each_launch_counts() -> None:
    chain = kernel("rnn", flops=10, dims=(1, 1, 1, 1), launches=35)
    assert seconds(chain, device()) == pytest.approx(35 * EFF.gap_s, rel=1e-3)


def test_causal_attention_takes_the_share_that_is_done() -> None:
    shape = {"flops": 1e13, "dims": (4096.0, 4096.0, 128.0, 16.0)}
    whole, half = (seconds(kernel("attention", done=d, **shape), device()) for d in (1.0, 0.5))
    assert whole - EFF.gap_s == pytest.approx(2 * (half - EFF.gap_s))
    assert whole == pytest.approx(1e13 / (1e15 * EFF.attention) + EFF.gap_s)


def test_a_product_runs_at_the_rate_of_its_precision() -> None:
    n = 8192
    side = kernel("gemm", flops=2.0 * n**3, dims=(n, n, n, 1))
    bf16, tf32, fp32 = (seconds(side, device(), p) - EFF.gap_s for p in ("bf16", "tf32", "fp32"))
    assert tf32 == pytest.approx(2 * bf16)
    # There are no float32 matrix units: a tenth of the bf16 rate.
    assert fp32 == pytest.approx(10 * bf16)


def test_channels_first_costs_conversions_where_there_are_matrix_units() -> None:
    conv = kernel("conv", flops=1e9, read=1e8, write=1e8, dims=(1e4, 64, 576, 1))
    for precision, slower in (("bf16", True), ("fp32", False)):
        first, last = (seconds(conv, device(), precision, lay) for lay in ("nchw", "nhwc"))
        assert (first > last) == slower
        assert first >= last
    plain = device(matrix_flops={})
    assert seconds(conv, plain, "fp16", "nchw") == seconds(conv, plain, "fp16", "nhwc")


def test_an_update_by_hand() -> None:
    """ResNet-18, AdamW in float32: 11,689,512 parameters × 7 values × 4 bytes = 327 MB.

    Its 62 tensors take one launch. A stream over everything reaches more of the bandwidth than the
    usual kernel, never all of it; the host gathers each tensor, for less than an op's dispatch.
    """
    made = program_of(zoo_graph("resnet18"), PRECISIONS["fp32"])
    took, host, moved = update_seconds(made, device(), EFF, OPTIMIZERS["adamw"])
    assert moved == 11_689_512 * 7 * 4
    assert moved / 1e12 < took - EFF.gap_s < moved / (1e12 * EFF.bandwidth)
    assert EFF.dispatch_s < host < (1 + 62) * EFF.dispatch_s
    processor = TIERS["cpu"]
    assert update_seconds(made, device(tier="cpu"), processor, OPTIMIZERS["adamw"])[1] == 0


def test_what_the_host_takes_to_issue_a_step() -> None:
    """A view launches nothing and costs the host about a third of an op that does."""
    found = predict(zoo_graph("gpt2"), "h200", batch=2, estimator="roofline")
    step = found.step
    kinds = np.array([step.program.classes[i].kind for i in step.program.op_class])
    linear = step.op_host[kinds == "linear"]
    assert np.allclose(linear[:, 0], EFF.dispatch_s)
    # Backward: a product for the data, one for the weight, a sum for the bias.
    back = linear[:, 1].max() / (EFF.dispatch_s * EFF.backward_dispatch)
    assert 1 < back < 3
    views = step.op_host[kinds == "view", 0] / EFF.dispatch_s
    assert (views > 0.25).all()
    assert (views < 0.5).all()
    assert (step.op_host[kinds == "accumulate", 0] == 0).all()
    assert (step.op_host[kinds == "accumulate", 1] > 0).all()


SIDE = st.floats(1, 1e5)


@given(SIDE, SIDE, SIDE, st.floats(1, 512), st.integers(1, 300))
def test_how_far_a_device_is_filled_is_a_share(
    rows: float, columns: float, depth: float, batch: float, units: int
) -> None:
    share = fill(np.array([[rows, columns, depth, batch]]), units)[0]
    assert 0 < share < 1


@given(
    st.tuples(SIDE, SIDE, SIDE, st.floats(1, 512)),
    st.integers(0, 3),
    st.floats(1, 3),
    st.integers(1, 300),
)
def test_a_larger_product_never_takes_less_time(
    dims: tuple[float, float, float, float], axis: int, factor: float, units: int
) -> None:
    larger = list(dims)
    larger[axis] *= factor
    times = [
        seconds(kernel("gemm", flops=2 * float(np.prod(d)), dims=d), device(units=units))
        for d in (dims, tuple(larger))
    ]
    assert times[0] <= times[1] * (1 + 1e-9)


@pytest.mark.parametrize("rows", range(100, 140))
def test_one_more_row_never_makes_a_product_faster(rows: int) -> None:
    """A tile has 128 rows: the 129th may not fill the device twice as well."""
    times = [
        seconds(kernel("gemm", flops=2.0 * m * 64 * 64, dims=(m, 64, 64, 1)), device())
        for m in (rows, rows + 1)
    ]
    assert times[0] <= times[1]


MODELS = ("resnet18", "gpt2", "mobilenet_v2", "lstm-ptb")
DEVICES = [d.name for d in all_devices()]


def kernels_for(model: str, precision: str = "fp32", batch: int = 4) -> Kernels:
    made = zoo_graph(model)
    return kernels_of(program_of(made, PRECISIONS[precision]), batch, made.seq)


def scaled(on: Device, peaks: float = 1, **changes: Any) -> Device:
    return replace(
        on,
        matrix_flops={k: v * peaks for k, v in on.matrix_flops.items()},
        vector_flops={k: v * peaks for k, v in on.vector_flops.items()},
        **changes,
    )


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(DEVICES),
    st.sampled_from(["fp32", "amp_bf16"]),
    st.floats(1, 100),
)
def test_a_better_device_is_never_slower(
    model: str, name: str, precision: str, factor: float
) -> None:
    kernels, on = kernels_for(model, precision), load_device(name)

    def priced(device: Device) -> Any:
        return ROOFLINE.price(kernels, device, PRECISIONS[precision]).seconds

    before = priced(on) * (1 + 1e-12)
    assert (priced(replace(on, memory_bandwidth=on.memory_bandwidth * factor)) <= before).all()
    assert (priced(scaled(on, factor)) <= before).all()
    more = max(1, round(on.units * factor)) / on.units
    # More units alone, at the same peak, are slower units: a kernel too small to fill them all
    # then takes longer, which is meant. More units of the same kind bring their peak with them.
    assert (priced(scaled(on, more, units=round(on.units * more))) <= before).all()


def test_the_same_peak_from_more_units_is_slower_for_small_products() -> None:
    small = kernel("gemm", flops=2.0 * 128**3, dims=(128, 128, 128, 1))
    large = kernel("gemm", flops=2.0 * 16384**3, dims=(16384, 16384, 16384, 1))
    few, many = device(units=10), device(units=1000)
    assert seconds(small, many) > seconds(small, few)
    assert seconds(large, many) == pytest.approx(seconds(large, few), rel=0.05)


def test_every_tier_of_device_has_its_efficiencies() -> None:
    assert set(TIERS) == set(DEVICE_TIERS)
    for tier, eff in TIERS.items():
        shares = (eff.gemm, eff.conv, eff.attention, eff.vector, eff.bandwidth, eff.depthwise)
        assert all(0 < s < 1 for s in shares), tier
        assert 0 < eff.gap_s < 1e-3
        assert eff.backward_dispatch >= 1


def test_estimators_by_name() -> None:
    assert estimator_named("roofline").basis == "datasheet"
    with pytest.raises(UnknownNameError, match="unknown estimator 'rofline'; did you mean roofli"):
        estimator_named("rofline")


@pytest.mark.parametrize("host_bound", [True, False])
def test_an_interval_contains_the_prediction_and_is_wider_where_unjudged(host_bound: bool) -> None:
    for name, regimes in MEASURED.items():
        judged = next(iter(JUDGED_ON[name]))
        low, high = interval(name, judged, 2.0, host_bound)
        factor = regimes["host" if host_bound else "device"]
        assert (low, high) == (2 * factor[0], 2 * factor[1])
        # Castelló's model leaves out launches and most ops: every real step was longer.
        assert low < high if name == "castello" else low < 2 < high
        wider = interval(name, "never-measured", 2.0, host_bound)
        assert wider[0] < low
        assert wider[1] > high
