"""The step as a Chrome trace (JSON), which Perfetto and chrome://tracing open.

Two rows: the host issuing ops and the device running them. Times are microseconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from traincast.estimate.program import Floats
from traincast.report.files import write_text
from traincast.simulate.prediction import Prediction

_HOST, _DEVICE = 1, 2


def write_trace(prediction: Prediction, path: Path) -> None:
    """Write the trace of one step."""
    write_text(path, json.dumps(trace_of(prediction), ensure_ascii=False))


def trace_of(prediction: Prediction) -> dict[str, Any]:
    """Return the trace of one step in the steady state, with one event for each op and phase."""
    step = prediction.step
    names, kinds = step.program.names, [c.kind for c in step.program.classes]
    count = len(names)
    order = [(i, 0) for i in range(count)]
    if step.plan.training:
        order += [(int(i), 0) for i in np.flatnonzero(step.again)]
        order += [(i, 1) for i in reversed(range(count))]
    order *= step.plan.accumulate
    index = np.array(order)
    device = np.append(step.op_seconds[index[:, 0], index[:, 1]], step.update_s)
    host = np.append(step.op_host[index[:, 0], index[:, 1]], step.update_host_s)
    issued = np.cumsum(host)
    start = _starts(device, issued if step.host_bound else np.zeros_like(issued))
    labels = [
        (names[i], "backward" if p else "forward", kinds[step.program.op_class[i]])
        for i, p in order
    ]
    labels.append((f"{prediction.optimizer} update", "optimizer", "update"))
    events: list[dict[str, Any]] = [
        _name("process_name", 0, f"{prediction.model} on {prediction.device.title}"),
        _name("thread_name", _HOST, "host"),
        _name("thread_name", _DEVICE, "device"),
    ]
    rows = ((_DEVICE, _spans(start, device)), (_HOST, _spans(issued - host, host)))
    for i, (name, phase, kind) in enumerate(labels):
        events += [
            _event(name, phase, kind, thread, *spans[i])
            for thread, spans in rows
            if spans[i][1] > spans[i][0]
        ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "model": prediction.model,
            "device": prediction.device.name,
            "step_ms": prediction.seconds * 1e3,
            "estimator": prediction.estimator,
        },
    }


def _starts(device: Floats, issued: Floats) -> Floats:
    """Return when each op starts: after it was issued and after the one before has ended."""
    ended = np.cumsum(device)
    waited: Floats = np.maximum.accumulate(issued - (ended - device))
    return waited + ended - device


def _spans(start: Floats, length: Floats) -> list[tuple[int, int]]:
    """Return begin and end of each event in whole nanoseconds, none before the last has ended."""
    spans: list[tuple[int, int]] = []
    free = 0
    for begin, end in zip(start * 1e9, (start + length) * 1e9, strict=True):
        first = max(round(float(begin)), free)
        free = max(round(float(end)), first)
        spans.append((first, free))
    return spans


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}


def _event(name: str, phase: str, kind: str, thread: int, begin: int, end: int) -> dict[str, Any]:
    return {
        "name": name,
        "cat": phase,
        "ph": "X",
        "pid": 1,
        "tid": thread,
        "ts": begin / 1e3,
        "dur": (end - begin) / 1e3,
        "args": {"kind": kind, "phase": phase},
    }
