"""Any network on any CPU: counts from graphs, measured parameters, what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from published_cases import MEASURED_LARGE_H, NETWORKS

from traincast.errors import (
    InputFileError,
    InvalidValueError,
    PredictionError,
    UnknownNameError,
)
from traincast.estimate.viebke import (
    PUBLISHED,
    Contention,
    Factors,
    Machine,
    Measured,
    Parameters,
    Run,
    Times,
    Work,
    default_run,
    forecast,
    machine_of,
    model_a,
    parameters_to_dict,
    read_parameters,
    work_of,
)
from traincast.ingest import resolve

CLOCK = PUBLISHED.machine.clock_hz
COUNTS = (1, 15, 30, 60, 120, 180, 240)


def fitted(names: list[str]) -> tuple[float, float, float]:
    """Cycles per operation forward and backward, contention per thread and byte; means."""
    rows = []
    for name in names:
        work, known = work_of(resolve(name))[0], PUBLISHED.networks[name]
        rows.append(
            (
                known.times.forward * CLOCK / work.forward,
                known.times.backward * CLOCK / work.backward,
                known.contention.at(240) / 240 / work.written,
            )
        )
    forward, backward, waits = (
        math.exp(sum(map(math.log, column)) / len(column)) for column in zip(*rows, strict=True)
    )
    return forward, backward, waits


def test_counts_of_the_small_network_by_hand() -> None:
    work, notes = work_of(resolve("mnist-small"))
    # Multiply-adds: conv1 5·26²·4² = 54,080; conv2 10·9²·5²·5 = 101,250; 90·50 + 50·10 = 5,000.
    macs = 54_080 + 101_250 + 5_000
    assert macs == 160_330
    # Beside them: tanh on 3,380 + 810 + 50 values, two poolings, the loss on 10 classes.
    assert macs + 3_380 + 810 + 50 < work.forward < 1.5 * macs
    # Backward: as much again for the weights and, but for the first layer, for the inputs.
    assert work.backward > 2 * macs - 54_080 + 6_405
    assert notes == []


def test_a_larger_batch_shares_calls_and_the_update() -> None:
    graph = resolve("mnist-small")
    one, eight = work_of(graph)[0], work_of(graph, batch=8)[0]
    assert eight.forward == pytest.approx(one.forward, rel=1e-3)
    assert eight.forward_calls == one.forward_calls / 8
    assert one.backward - eight.backward == pytest.approx(6_405 * 7 / 8, rel=1e-2)


def test_derived_factors_are_those_of_the_three_networks() -> None:
    forward, backward, waits = fitted(list(NETWORKS))
    derived = PUBLISHED.derived
    assert derived.forward == pytest.approx(forward, rel=1e-3)
    assert derived.backward == pytest.approx(backward, rel=1e-3)
    assert derived.contention == pytest.approx(waits, rel=1e-3)


def test_derived_counts_predict_a_network_that_was_not_fitted() -> None:
    errors = []
    for name in NETWORKS:
        forward, backward, waits = fitted([n for n in NETWORKS if n != name])
        work = work_of(resolve(name))[0]
        factors = Factors(forward=forward, backward=backward)
        slow = Contention(((1, waits * work.written),))
        for threads in COUNTS:
            found = model_a(work, factors, PUBLISHED.machine, slow, default_run(name), threads)
            b = forecast(name, model="b", threads=[threads]).rows[0].seconds.total
            errors.append(abs(found.total / b - 1))
            measured = MEASURED_LARGE_H.get(threads)
            if name == "mnist-large" and measured:
                assert found.total / 3600 == pytest.approx(measured, rel=0.08)
    mean = sum(errors) / len(errors)
    print(f"left out, against model B: mean {mean:.1%}, worst {max(errors):.1%}")
    assert mean == pytest.approx(0.053, abs=0.001)
    published = sum(PUBLISHED.networks[n].deviation["b"] for n in NETWORKS) / 3
    assert PUBLISHED.derived.deviation == pytest.approx(math.hypot(mean, published), abs=0.001)


def test_the_cpu_ratio_is_that_of_the_sequential_run_on_a_xeon_e5() -> None:
    # CHAOS: 31.1 h for the large network on one core of a Xeon E5-2695 v2 (recalled, unverified).
    found = forecast("mnist-large", device="xeon-e5-2695-v2", threads=[1]).rows[0].seconds
    assert (found.total - found.memory) / 3600 == pytest.approx(31.1, rel=1e-3)


def test_any_network_on_any_cpu() -> None:
    phi = forecast("resnet18", threads=[1, 60])
    assert phi.deviation == PUBLISHED.derived.deviation
    assert phi.rows[1].speedup > 40
    epyc = forecast("resnet18", device="epyc-9654", threads=[1, 96, 960])
    assert epyc.deviation is None
    assert epyc.interval(epyc.rows[0]) is None
    assert any("no run on this machine was measured" in note for note in epyc.notes)
    assert any("beyond 96 threads" in note for note in epyc.notes)
    assert [row.beyond for row in epyc.rows] == [False, False, True]
    assert epyc.rows[0].seconds.total < phi.rows[0].seconds.total


def test_a_sequence_counts_as_an_image() -> None:
    short, long = (work_of(resolve("gpt2"), seq=s)[0].forward for s in (256, 512))
    assert 2 < long / short < 2.3


def test_a_network_of_the_publication_on_another_cpu_is_counted() -> None:
    found = forecast("mnist-small", device="epyc-9654", threads=[8])
    assert "operation counts of the graph" in found.basis


def test_no_interval_where_nobody_measured() -> None:
    found = forecast("mnist-small", threads=[240, 480])
    assert [found.interval(row) is None for row in found.rows] == [False, True]


def test_names_are_those_of_the_zoo() -> None:
    assert forecast("MNIST_Small", threads=[240]).network == "mnist-small"
    assert default_run("mnist_large").epochs == 15
    assert default_run("resnet18").epochs == 70


def test_given_figures_take_the_place_of_the_table() -> None:
    base = forecast("mnist-small", threads=[240]).rows[0].seconds
    half = forecast("mnist-small", threads=[240], operation_factor=7.5).rows[0].seconds
    assert half.training == pytest.approx(base.training / 2)
    slow = forecast("mnist-small", threads=[240], contention=1e-4)
    assert slow.rows[0].seconds.memory == pytest.approx(1e-4 * 70 * 60_000)
    assert slow.deviation is None
    wider = forecast("mnist-small", threads=[120], machine=machine_of("xeon-phi-7120p", cores=30))
    assert wider.rows[0].cpi == 2
    assert wider.deviation is None


def test_what_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="nosuch"):
        forecast("nosuch")
    with pytest.raises(UnknownNameError, match="many-core model 'c'"):
        forecast("mnist-small", model="c")
    with pytest.raises(InvalidValueError, match="threads 0"):
        forecast("mnist-small", threads=[0])
    with pytest.raises(InvalidValueError, match="no thread count"):
        forecast("mnist-small", threads=[])
    with pytest.raises(PredictionError, match=r"model b needs measured times of resnet18"):
        forecast("resnet18", model="b")
    with pytest.raises(PredictionError, match=r"epyc-9654.*calibrate --many-core mnist-small"):
        forecast("mnist-small", model="b", device="epyc-9654")
    with pytest.raises(InvalidValueError, match="operation factor is model a's"):
        forecast("mnist-small", model="b", operation_factor=3)
    with pytest.raises(InvalidValueError, match="leave out the device"):
        forecast("mnist-small", device="epyc-9654", parameters=parameters())


def measured(ops: float, seconds: float, **more: object) -> Measured:
    """A network of which both passes have `ops` operations and 10 calls, and take `seconds`."""
    values: dict = {
        "times": Times(prepare=3.0, forward=seconds, backward=seconds),
        "contention": Contention(((1, 0.0), (2, 1e-5), (4, 4e-5))),
        "work": Work(
            prepare=0.0,
            forward=ops,
            backward=ops,
            forward_calls=10,
            backward_calls=10,
            written=1e4,
        ),
    }
    return Measured(**(values | more))


def parameters(**networks: Measured) -> Parameters:
    return Parameters(
        machine=Machine(name="a CPU", clock_hz=2e9, cores=4, cpi=(1.0, 1.5)),
        networks=networks or {"mnist-small": measured(1e5, 1e-4)},
        software={"torch": "2.0"},
    )


def test_measured_times_give_model_b_on_that_machine() -> None:
    found = forecast(
        "mnist-small",
        model="b",
        threads=[1, 2, 3, 8, 16],
        parameters=parameters(),
        run=Run(images=1000, test_images=0, epochs=1),
    )
    one, two, three, eight, sixteen = (row.seconds for row in found.rows)
    assert one.total == pytest.approx(3.0 + 1000 * 3e-4)
    assert two.memory == pytest.approx(1e-5 * 500)
    assert three.memory == pytest.approx(2.5e-5 * 1000 / 3)  # halfway from 2 to 4 threads
    assert eight.training == pytest.approx(1.5 * 1000 / 8 * 2e-4)  # two threads on each core
    assert sixteen.memory == pytest.approx(eight.memory)  # c·p
    assert "calibration of a CPU (torch 2.0)" in found.basis
    # An interval where threads were measured, none beyond.
    assert [found.interval(row) is None for row in found.rows] == [False] * 3 + [True] * 2
    with pytest.raises(PredictionError, match=r"mnist-large.*the parameters have mnist-small"):
        forecast("mnist-large", model="b", parameters=parameters())


def test_model_a_learns_cycles_per_operation_and_per_call() -> None:
    # 2 cycles an operation and 4000 a call at 2 GHz: (2·ops + 40,000) / 2e9 seconds.
    pair = {n: measured(ops, (2 * ops + 40_000) / 2e9) for n, ops in (("x", 1e5), ("y", 1e7))}
    found = parameters(**pair).factors()
    assert (found.forward, found.forward_call) == pytest.approx((2, 4000))
    alone = parameters(**pair).factors(without=["y"])
    assert (alone.forward, alone.forward_call) == (pytest.approx(2.4), 0)
    # A small network that is slower than a large one by more than its calls explain.
    odd = parameters(x=measured(1e5, 1e-3), y=measured(1e7, 1e-4)).factors()
    assert min(odd.forward, odd.forward_call) >= 0
    with pytest.raises(PredictionError, match="at least one measured network"):
        parameters().factors(without=["mnist-small"])


def test_model_a_with_measured_factors_predicts_a_network_that_was_not_measured() -> None:
    found = forecast("mnist-large", model="a", threads=[1, 2], parameters=parameters())
    assert found.rows[0].seconds.sequential == pytest.approx(3.0, rel=1e-3)
    assert found.rows[1].seconds.memory > 0
    assert "factors from a calibration" in found.basis


def test_contention_measured_at_one_thread_alone_is_said() -> None:
    one = parameters(**{"mnist-small": measured(1e5, 1e-4, contention=Contention(((1, 0.0),)))})
    found = forecast("mnist-small", model="b", threads=[2], parameters=one)
    assert any("one thread alone" in note for note in found.notes)


def test_parameters_survive_a_file(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(json.dumps(parameters_to_dict(parameters())))
    assert read_parameters(file) == parameters()


def test_every_problem_of_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    data = parameters_to_dict(parameters())
    data["machine"]["clock_hz"] = -1
    data["networks"]["mnist-small"]["forward_s"] = "x"
    del data["networks"]["mnist-small"]["backward_s"]
    file.write_text(json.dumps(data))
    with pytest.raises(InputFileError) as caught:
        read_parameters(file)
    said = str(caught.value)
    for part in ("machine.clock_hz", "mnist-small.forward_s", "mnist-small.backward_s"):
        assert part in said
    file.write_text('{"format": "other"}')
    with pytest.raises(InputFileError, match="traincast-many-core/1"):
        read_parameters(file)


def test_plain_data_and_repr() -> None:
    found = forecast("mnist-small", threads=[240])
    data = json.loads(json.dumps(found.to_dict()))
    assert data["model"] == "viebke-a"
    row = data["rows"][0]
    parts = ("sequential_s", "training_s", "validation_s", "test_s", "memory_s")
    assert row["total_s"] == pytest.approx(sum(row[p] for p in parts))
    assert row["interval_s"][0] < row["total_s"] < row["interval_s"][1]
    assert repr(found) == "Forecast('mnist-small', model a, xeon-phi-7120p, 240: 532.6 s)"
    assert replace(found, deviation=2.0).interval(found.rows[0])[0] == 0
