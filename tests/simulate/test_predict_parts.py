"""A prediction's parts add up: phases, ops, bounds, traffic, the trace."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast import Prediction, predict
from traincast.errors import UnknownNameError
from traincast.graph import Graph, graph_from_json, graph_to_json
from traincast.hardware import all_devices
from traincast.ingest import zoo_graph
from traincast.report.trace import trace_of

MODELS = ("resnet18", "gpt2", "dlrm", "lstm-ptb", "mobilenet_v2", "t5-small", "mnist-small", "unet")
DEVICES = [d.name for d in all_devices()]


@st.composite
def requests(draw: Any) -> dict[str, Any]:
    return {
        "model": draw(st.sampled_from(MODELS)),
        "device": draw(st.sampled_from(DEVICES)),
        "batch": draw(st.integers(1, 300)),
        "precision": draw(st.sampled_from([None, "fp32", "bf16", "amp_fp16"])),
        "optimizer": draw(st.sampled_from(["sgd", "momentum", "adamw", "adafactor"])),
        "accumulate": draw(st.integers(1, 4)),
        "recompute": draw(st.booleans()),
        "layout": draw(st.sampled_from(["nchw", "nhwc"])),
        "compiled": draw(st.booleans()),
        "inference": draw(st.booleans()),
    }


def run(request: dict[str, Any], **changes: Any) -> Prediction:
    given_request = request | changes
    model, device = given_request.pop("model"), given_request.pop("device")
    return predict(zoo_graph(model) if isinstance(model, str) else model, device, **given_request)


def about(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-15)


@settings(max_examples=60, deadline=None)
@given(requests())
def test_parts_add_up(request: dict[str, Any]) -> None:
    found = run(request)
    step = found.step
    device = step.device_s
    assert sum(step.phase_s.values()) == about(found.seconds)
    assert found.seconds == about(max(sum(device.values()), sum(step.host_s.values())))
    assert sum(step.bound_s.values()) == about(sum(device.values()))
    for group in ("op", "layer", "type"):
        rows = found.by(group)
        assert sum(r.forward_s for r in rows) == about(device["forward"])
        assert sum(r.backward_s for r in rows) == about(device["backward"])
        assert sum(r.flops for r in rows) == about(sum(step.flops))
        assert sum(r.count for r in rows) == len(step.program.names)
        assert [r.seconds for r in rows] == sorted((r.seconds for r in rows), reverse=True)
    low, high = found.interval_s
    assert low < found.seconds < high
    assert found.samples == step.plan.batch * step.plan.accumulate
    assert found.samples_per_s * found.seconds == about(found.samples)


@pytest.mark.parametrize(
    ("model", "batch"), [("resnet18", 1), ("resnet18", 40), ("gpt2", 1), ("mobilenet_v2", 16)]
)
def test_phases_are_what_events_on_the_device_would_show(model: str, batch: int) -> None:
    """One op after the other: the host issues it, the device runs it when both are ready."""
    step = predict(model, "h200", batch=batch).step
    host = [*step.op_host[:, 0], *reversed(step.op_host[:, 1]), step.update_host_s]
    device = [*step.op_seconds[:, 0], *reversed(step.op_seconds[:, 1]), step.update_s]
    ops = len(step.op_host)
    issued = free = 0.0
    marks: list[float] = []
    for _ in range(8):
        begun = [max(issued, free)]
        for i, (issue, run_s) in enumerate(zip(host, device, strict=True), 1):
            issued += issue
            free = max(free, issued) + run_s
            if i in (ops, 2 * ops):
                begun.append(max(issued, free))
        marks = begun
    assert step.host_bound
    seen = step.phase_s
    assert seen["forward"] == pytest.approx(marks[1] - marks[0], rel=1e-6)
    assert seen["backward"] == pytest.approx(marks[2] - marks[1], rel=1e-6)
    assert min(seen.values()) >= 0


@settings(max_examples=25, deadline=None)
@given(requests())
def test_a_trace_shows_the_device_time_and_nothing_overlaps(request: dict[str, Any]) -> None:
    found = run(request)
    events = [e for e in trace_of(found)["traceEvents"] if e["ph"] == "X"]
    rows = {tid: [e for e in events if e["tid"] == tid] for tid in (1, 2)}
    for row, clock in ((2, found.step.device_s), (1, found.step.host_s)):
        # Both ends of each event are rounded to a nanosecond.
        rounding = 1e-3 * len(rows[row]) + 1e-6
        total = sum(e["dur"] for e in rows[row])
        assert total == pytest.approx(sum(clock.values()) * 1e6, rel=1e-9, abs=rounding)
        spans = sorted((round(e["ts"] * 1e3), round(e["dur"] * 1e3)) for e in rows[row])
        for (begin, length), (then, _) in itertools.pairwise(spans):
            assert begin + length <= then
    phases = {e["cat"] for e in rows[2]}
    training = {"forward", "backward", "optimizer"}
    assert phases == ({"forward"} if found.step.plan.optimizer is None else training)
    if found.step.host_bound:
        # A kernel starts once the host has issued it.
        issued = sum(found.step.host_s.values()) * 1e6
        assert max(e["ts"] + e["dur"] for e in events) >= issued - 1e-2


@settings(max_examples=40, deadline=None)
@given(requests(), st.integers(2, 8))
def test_accumulation_repeats_both_passes_and_updates_once(
    request: dict[str, Any], times: int
) -> None:
    one = run(request, accumulate=1, inference=False).step
    many = run(request, accumulate=times, inference=False).step
    for phase, factor in (("forward", times), ("backward", times), ("optimizer", 1)):
        assert many.device_s[phase] == about(factor * one.device_s[phase])
        assert many.host_s[phase] == about(factor * one.host_s[phase])
    assert many.flops == about(tuple(times * f for f in one.flops))  # type: ignore[comparison-overlap]


@settings(max_examples=40, deadline=None)
@given(requests())
def test_inference_is_the_forward_pass_alone(request: dict[str, Any]) -> None:
    training = run(request, inference=False, recompute=False)
    alone = run(request, inference=True)
    forward = training.step.device_s["forward"]
    if not training.step.plan.eager:
        # Compiled, nothing is written for a backward pass that never comes; a sum that is not
        # written may be computed again by its next reader.
        assert alone.step.device_s["forward"] <= forward * 1.05
        forward = alone.step.device_s["forward"]
    # Evaluated, there is no loss, no dropout, no counting of batches and nothing to keep.
    assert 0 < alone.step.device_s["forward"] <= forward * (1 + 1e-9)
    assert (alone.step.device_s["backward"], alone.step.device_s["optimizer"]) == (0, 0)
    assert alone.step.flops == (about(training.step.flops[0]), 0)
    assert all(row.backward_s == 0 for row in alone.by("op"))


@settings(max_examples=40, deadline=None)
@given(requests())
def test_recomputation_adds_one_forward_pass(request: dict[str, Any]) -> None:
    plain = run(request, inference=False, recompute=False)
    again = run(request, inference=False, recompute=True)
    assert again.step.device_s["backward"] == about(
        plain.step.device_s["backward"] + plain.step.device_s["forward"]
    )
    assert again.seconds > plain.seconds
    assert again.memory.activations <= plain.memory.activations
    assert again.step.flops == plain.step.flops


@settings(max_examples=60, deadline=None)
@given(requests(), st.integers(1, 100))
def test_a_larger_batch_never_moves_less_or_takes_less(request: dict[str, Any], more: int) -> None:
    small, large = run(request), run(request, batch=request["batch"] + more)
    assert (large.step.op_bytes >= small.step.op_bytes).all()
    assert (large.step.op_flops >= small.step.op_flops).all()
    # Corrections by shape are smooth, not monotone: below the smallest shape that was measured
    # they may fall by more than the physical part rises.
    sheet = {"estimator": "roofline"}
    small, large = run(request, **sheet), run(request, batch=request["batch"] + more, **sheet)
    assert sum(large.step.device_s.values()) >= sum(small.step.device_s.values()) * (1 - 1e-12)
    assert large.seconds >= small.seconds * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(requests(), st.integers(1, 100))
def test_a_larger_batch_takes_no_less_but_for_corrections(
    request: dict[str, Any], more: int
) -> None:
    small, large = run(request), run(request, batch=request["batch"] + more)
    assert large.seconds >= 0.98 * small.seconds


def through_json(made: Graph) -> Graph:
    return graph_from_json(graph_to_json(made))


@pytest.mark.parametrize("model", ["resnet18", "gpt2", "dlrm"])
@pytest.mark.parametrize("batch", [1, 7])
def test_a_graph_predicts_the_same_from_its_file(model: str, batch: int, tmp_path: Path) -> None:
    direct = predict(zoo_graph(model), "a100", batch=batch)
    again = predict(through_json(zoo_graph(model)), "a100", batch=batch)
    assert again.to_dict() == direct.to_dict()
    file = tmp_path / "net.json"
    file.write_text(graph_to_json(zoo_graph(model)), encoding="utf-8")
    assert predict(str(file), "a100", batch=batch).to_dict() == direct.to_dict()
    assert predict("net.json", "a100", batch=batch, root=tmp_path).to_dict() == direct.to_dict()


@pytest.mark.parametrize("recompute", [False, True])
def test_flops_of_a_known_network(recompute: bool) -> None:
    """torchvision's ResNet-18: 1,814,073,344 multiply-adds an image, backward twice forward.

    But for the first convolution (118,013,952), whose input needs no gradient.
    """
    found = predict("resnet18", "h200", batch=3, recompute=recompute)
    forward = 2 * 1_814_073_344
    assert found.step.flops == (3 * forward, 3 * (2 * forward - 2 * 118_013_952))


def test_an_op_without_a_formula_is_reported_with_its_share() -> None:
    from traincast.graph import Op, Size, Tensor

    shape = (Size(batch=1), Size(1000))
    tensors = {
        "x": Tensor(name="x", shape=shape, role="input"),
        "w": Tensor(name="w", shape=(Size(1000),), role="parameter"),
        "a": Tensor(name="a", shape=shape),
        "b": Tensor(name="b", shape=shape),
    }
    ops = (
        Op(name="scale", kind="pointwise", inputs=("x", "w"), outputs=("a",), attrs={"fn": "mul"}),
        Op(name="odd", kind="unknown", inputs=("a",), outputs=("b",), attrs={"fn": "fancy"}),
    )
    made = Graph(name="odd", ops=ops, tensors=tensors)
    found = predict(made, "h200", batch=100, precision="fp32", optimizer="sgd")
    # In floats: forward, mul reads 100,000 + 1,000 and writes 100,000; fancy reads and writes
    # 100,000. Backward, fancy reads both and writes one; mul's weight gradient reads two and
    # writes one, then its sum reads 100,000 and writes 1,000. The update moves 3 · 1,000.
    n, w = 100_000, 1_000
    unknown = 2 * n + 3 * n
    total = unknown + (2 * n + w) + 3 * n + (n + w) + 3 * w
    assert found.step.unpriced == {"fancy": pytest.approx(unknown / total)}
    assert found.to_dict()["unpriced_ops"] == [
        {"op": "fancy", "bytes_share": pytest.approx(unknown / total)}
    ]


def test_rows_name_their_group() -> None:
    found = predict("resnet18", "h200", batch=2)
    assert {r.name for r in found.by("type")} >= {"conv", "batch_norm", "linear", "pool"}
    assert "layer1.0.conv1" in {r.name for r in found.by("layer")}
    conv = next(r for r in found.by("type") if r.name == "conv")
    # ResNet-18 has 20 convolutions: 1 + 16 in blocks + 3 in shortcuts.
    assert conv.count == 20
    assert conv.to_dict()["forward_ms"] == conv.forward_s * 1e3
    with pytest.raises(UnknownNameError, match="unknown group 'kernel'; use layer, "):
        found.by("kernel")


def test_a_trace_file_is_json_that_tells_what_it_shows(tmp_path: Path) -> None:
    found = predict("mnist-small", "h200", batch=2)
    found.to_trace(tmp_path / "step.json")
    data = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))
    names = {e["args"]["name"] for e in data["traceEvents"] if e["ph"] == "M"}
    assert {"host", "device"} <= names
    assert data["otherData"]["step_ms"] == found.seconds * 1e3
    assert any(e["name"] == "adamw update" for e in data["traceEvents"])


def test_json_has_the_stable_keys_with_units() -> None:
    data = predict("gpt2", "h200", batch=2).to_dict()
    promised = {
        "model", "device", "parameters", "forward_flops", "step_ms", "interval_ms", "forward_ms",
        "backward_ms", "optimizer_ms", "samples_per_s", "peak_bytes", "fits", "bound_by",
        "estimator", "basis", "unpriced_ops",
    }  # fmt: skip
    assert promised <= set(data)
    # GPT-2 small: 124,439,808 parameters (Radford et al. 2019; Transformers' gpt2).
    assert data["parameters"] == 124_439_808
    assert json.loads(json.dumps(data)) == data
    assert data["forward_ms"] + data["backward_ms"] + data["optimizer_ms"] == about(data["step_ms"])


def test_the_text_of_a_prediction_reads_well() -> None:
    text = repr(predict("gpt2", "h200", batch=2, seq=128))
    assert text.startswith("Prediction('gpt2' on h200, batch=2, seq=128, amp_bf16: ")
    assert " a step [" in text
    assert text.endswith(")")
