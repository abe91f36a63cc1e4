"""The five-axes study: crossings against brute force, ranges as users write them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.estimate.castello import Machine, Rules, authors_network, data_parallel
from traincast.search.explore import AXES, SPREAD, Base, Study, explore, prepare
from traincast.search.ranges import parse_axis

BASE = Base(
    batch=256, nodes=16, flops=4e12, memory_bandwidth=50e9, link_bandwidth=1.25e9, latency_s=0.5e-6
)


def study(name: str = "alexnet", base: Base = BASE, **more: object) -> Study:
    return Study(network=authors_network(name), base=base, rules=Rules(), **more)  # type: ignore[arg-type]


def brute(found: Study, axis: str, values: np.ndarray) -> list[tuple[float, float]]:
    """Return the neighbours among many values between which the faster strategy changes."""
    data, model = found.at(**{AXES[axis].key: values})
    order = np.sign(data.step - model.step)
    return [
        (float(values[i]), float(values[i + 1])) for i in np.flatnonzero(order[:-1] * order[1:] < 0)
    ]


def test_the_batch_at_which_alexnet_changes_over() -> None:
    """Model parallelism wins at a batch of 64 and loses at 256, by the table of five axes."""
    found = study().sweep([(AXES["batch"], np.array([16, 1024]))])
    (crossing,) = found.crossings
    assert [crossing.between] == brute(study(), "batch", np.arange(16, 1025))
    assert 64 < crossing.value < 256
    assert (crossing.below, crossing.above) == ("model", "data")
    assert crossing.between[0] <= crossing.value <= crossing.between[1]


@settings(deadline=None, max_examples=30)
@given(
    axis=st.sampled_from(["flops", "memory-bandwidth", "link-bandwidth"]),
    batch=st.integers(4, 512),
    nodes=st.integers(2, 256),
    overlap=st.booleans(),
)
def test_crossings_equal_brute_force(axis: str, batch: int, nodes: int, overlap: bool) -> None:
    base = Base(
        batch=batch, nodes=nodes, flops=4e12, memory_bandwidth=50e9, link_bandwidth=1.25e9,
        latency_s=0.5e-6,
    )  # fmt: skip
    here = study(base=base, overlap=overlap)
    low, high = (getattr(base, AXES[axis].key) * f for f in (1e-2, 1e2))
    fine = np.geomspace(low, high, 20_001)
    expected = brute(here, axis, fine)
    found = here.crossings(AXES[axis], low, high)
    for (before, after), crossing in zip(expected, found, strict=True):
        assert before * (1 - 1e-9) <= crossing.value <= after * (1 + 1e-9)


@settings(deadline=None, max_examples=30)
@given(axis=st.sampled_from(["batch", "nodes"]), link=st.floats(1e8, 1e11))
def test_crossings_on_whole_axes_equal_every_number_tried(axis: str, link: float) -> None:
    base = Base(
        batch=40, nodes=16, flops=4e12, memory_bandwidth=50e9, link_bandwidth=link, latency_s=1e-6
    )
    here = study(base=base)
    found = here.crossings(AXES[axis], 2, 2000)
    assert [c.between for c in found] == brute(here, axis, np.arange(2.0, 2001.0))


def test_beyond_the_interval_the_order_is_certain() -> None:
    here = study()
    (crossing,) = here.crossings(AXES["batch"], 1, 4096)
    low, high = crossing.interval
    assert low is not None
    assert high is not None
    for edge, inward in ((low, 1), (high, -1)):
        data, model = here.at(batch=np.array([edge, edge + inward]))
        outside, inside = np.exp(np.abs(np.log(data.step / model.step)))
        assert outside >= SPREAD > inside


def test_an_interval_that_leaves_the_range_has_no_end() -> None:
    (crossing,) = study().crossings(AXES["batch"], 60, 70)
    assert crossing.interval == (None, None)


def test_two_axes_find_the_crossing_of_every_row() -> None:
    links = np.array([1.25e8, 1.25e9, 1.25e10])
    found = study().sweep(
        [(AXES["batch"], np.array([4, 64, 1024])), (AXES["link-bandwidth"], links)]
    )
    assert found.data.step.shape == (3, 3)
    assert [c.at for c in found.crossings] == [(("link-bandwidth", v),) for v in links]
    for c, link in zip(found.crossings, links, strict=True):
        base = BASE.with_value(AXES["link-bandwidth"], float(link))
        assert [c.between] == brute(study(base=base), "batch", np.arange(4, 1025))


def test_a_sweep_agrees_with_the_model() -> None:
    found = study("vgg16").sweep([(AXES["flops"], np.array([1e12, 4e12, 16e12]))])
    machine = Machine(flops=4e12, memory_bandwidth=50e9, link_bandwidth=1.25e9)
    direct = data_parallel(authors_network("vgg16"), machine, batch=256, nodes=16)
    assert found.data.step[1] == direct.step
    assert found.data.step == pytest.approx([2.544328, 1.553477, 1.431142], rel=1e-5)


def test_prepare_takes_the_machine_from_the_catalogs() -> None:
    found = prepare("vgg16", "xeon-8180", "ethernet-10g", batch=64, nodes=4, precision="fp32")
    base = found.study.base
    assert (base.flops, base.memory_bandwidth, base.link_bandwidth) == (4.48e12, 128e9, 1.25e9)
    assert found.study.rules.unfold
    gpu = prepare("vgg16", "h200", nodes=4, precision="amp_bf16")
    assert not gpu.study.rules.unfold
    assert (gpu.study.base.element_bytes, gpu.study.base.gradient_bytes) == (2, 4)
    assert gpu.study.base.batch == 4 * 32
    swept = explore(gpu, [(AXES["nodes"], np.array([2, 4]))])
    assert len(swept.sweeps) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch=16:128", [16, 32, 64, 128]),
        ("batch=16:100", [16, 32, 64]),
        ("batch=16:1024:x4", [16, 64, 256, 1024]),
        ("batch=1:100:log3", [1, 10, 100]),
        ("batch=1:100:3", [1, 10, 100]),
        ("batch=10:20:lin3", [10, 15, 20]),
        ("batch=64,16", [16, 64]),
        ("batch=0.25x:1x", [64, 128, 256]),
        ("nodes=0.01x", [1]),
        ("flops=1TFLOP/s:4 TFLOP/s", [1e12, 2e12, 4e12]),
        ("link_bandwidth=1 Gbit/s,1 GB/s", [1.25e8, 1e9]),
    ],
)
def test_ranges(text: str, expected: list[float]) -> None:
    axis, values = parse_axis(text, BASE)
    assert axis.name == text.partition("=")[0].replace("_", "-")
    assert values == pytest.approx(expected, rel=1e-12)


def test_the_default_range_lies_around_the_base() -> None:
    for name, axis in AXES.items():
        _, values = parse_axis(name, BASE)
        base = getattr(BASE, axis.key)
        assert (values[0], values[-1], len(values)) == (base / 16, base * 16, 9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bach=1:2", "did you mean batch"),
        ("batch=128:16", "ends before it starts"),
        ("batch=1:2:3:4", "is no range; write 16:1024"),
        ("batch=1:2:often", "is no range"),
        ("batch=1:100:x1", "the factor in '1:100:x1' is too small"),
        ("batch=1:100:log1", "give 2 to 1000"),
        ("batch=0:8", "batch '0' is not a whole number"),
        ("flops=1:8", "has no unit"),
        ("flops=0x:1x", "above zero"),
        ("link-bandwidth=1GHz", "expected bytes/s"),
    ],
)
def test_bad_ranges_say_the_fix(text: str, said: str) -> None:
    with pytest.raises((InvalidValueError, UnknownNameError), match=said):
        parse_axis(text, BASE)


def test_one_axis_cannot_be_swept_against_itself() -> None:
    pair = (AXES["batch"], np.array([1.0, 2.0]))
    with pytest.raises(InvalidValueError, match="two different ones"):
        study().sweep([pair, pair])
