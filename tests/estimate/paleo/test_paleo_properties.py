"""What holds for every network, device and number of workers."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.estimate import paleo
from traincast.estimate.paleo import DEVICES, NETWORKS, PaleoModel, PaleoStep
from traincast.estimate.paleo.model import share_batch
from traincast.estimate.paleo.schemes import SCHEMES, exchange_seconds

workers = st.integers(1, 4096)
size = st.floats(1.0, 1e12)
network = st.sampled_from(list(NETWORKS.values()))
shares = st.floats(0.01, 1.0)


@given(workers, size, network, shares)
def test_exchange_schemes_relate(k, size, network, ppp):
    seconds = {s: exchange_seconds(s, size, k, network, ppp) for s in SCHEMES}
    assert seconds["tree"] == 2 * seconds["butterfly"]
    assert seconds["butterfly-mixing"] > 0
    if k == 1:
        assert seconds["one-to-all"] == seconds["tree"] == seconds["butterfly"] == 0
    if k == 2:
        assert seconds["one-to-all"] == seconds["tree"]
    assert seconds["tree"] <= seconds["one-to-all"]


@given(st.integers(1, 4096), workers)
def test_a_worker_always_has_a_sample(batch, k):
    share, whole = share_batch(batch, k, "strong")
    assert share >= 1
    assert whole == batch
    assert (share - 1) * k < batch <= share * k
    assert share_batch(batch, k, "weak") == (batch, batch * k)


@pytest.mark.parametrize("rules", ["paper", "head"])
@pytest.mark.parametrize("device", DEVICES)
def test_layers_take_longer_by_the_percent_of_peak_and_the_update_does_not(rules, device):
    full, half = (
        PaleoModel(rules=rules, ppp_compute=p).step("alex_v2", device, 128) for p in (1, 0.5)
    )
    assert half.forward_s == pytest.approx(2 * full.forward_s)
    assert half.backward_s == pytest.approx(2 * full.backward_s)
    assert half.update_s == full.update_s
    assert half.communication_s == full.communication_s


@given(st.integers(1, 2048), st.integers(1, 2048), st.sampled_from(["gemm", "fft", "fft-tiled"]))
def test_a_larger_batch_never_takes_less_time(a, b, algorithms):
    model = PaleoModel(algorithms=algorithms)
    small, large = (model.step("nin", "k40", n).total_s for n in sorted((a, b)))
    assert small <= large


@given(st.integers(1, 512), shares, st.sampled_from(list(DEVICES)))
def test_pipelining_never_costs_time(batch, ppp, device):
    plain, piped = (
        PaleoModel(ppp_compute=ppp, pipeline=p).step("nin", device, batch) for p in (False, True)
    )
    assert plain.total_s / 2 <= piped.total_s <= plain.total_s


@pytest.mark.parametrize("rules", ["paper", "head"])
@pytest.mark.parametrize("strategy", ["data", "model", "hybrid"])
def test_parts_add_up(rules, strategy):
    k = 1 if strategy == "model" else 4
    step = PaleoModel(rules=rules).step("alex_v2_4gpu", "k20", 64, k, strategy=strategy)
    assert isinstance(step, PaleoStep)
    assert step.total_s == pytest.approx(sum(sum(part[1:]) for part in step.parts))
    assert step.total_s == pytest.approx(
        step.forward_s + step.backward_s + step.update_s + step.communication_s
    )
    assert step.upper_forward_s >= step.forward_s
    assert step.upper_backward_s >= step.backward_s


@pytest.mark.parametrize("net", ["alex_v2", "vgg16"])
def test_layers_add_up_to_the_step(net):
    model = PaleoModel(pipeline=True)
    rows, step = model.layers(net, "k80", 32), model.step(net, "k80", 32)
    assert sum(row.forward_s for row in rows) == pytest.approx(step.forward_s)
    assert sum(row.backward_s for row in rows) == pytest.approx(step.backward_s)


def test_no_piece_of_work_takes_less_than_a_clock_cycle():
    """Updating no weights moves nothing, three times; computing nothing is free."""
    step = PaleoModel().step("alex_v2_1gpu", "k40", 1, strategy="hybrid")
    assert step.parts[1] == ("model", 0, 0, pytest.approx(3 / 745e6), 0)


def test_exported_names_are_sorted_and_there():
    kind = {name: (not name.isupper(), name[0].islower(), name) for name in paleo.__all__}
    assert paleo.__all__ == sorted(paleo.__all__, key=kind.__getitem__)
    assert all(hasattr(paleo, name) for name in paleo.__all__)


def test_importing_stays_light():
    code = (
        "import sys, traincast.estimate.paleo;"
        "print([m for m in ('torch', 'scipy', 'plotly', 'sklearn') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
