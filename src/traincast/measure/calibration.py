"""From measured kernels to a profile."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from traincast.errors import InvalidValueError
from traincast.estimate.calibrated.models import (
    CLOCK,
    FIXED,
    KernelModel,
    fit_base,
    fit_residual,
    levenberg,
)
from traincast.estimate.calibrated.profile import (
    LARGEST,
    BlockUpdate,
    Host,
    Profile,
    TensorUpdate,
    Update,
    profile_to_json,
)
from traincast.estimate.calibrated.species import (
    acting,
    features_of,
    key_of,
    scales_of,
    species_of,
    windows_of,
    work_of,
)
from traincast.estimate.optimizer import OPTIMIZERS, Optimizer
from traincast.estimate.program import Floats, kernel_table
from traincast.graph.kinds import Kernel
from traincast.hardware import Device, load_device
from traincast.measure.matrix_rows import Row
from traincast.measure.rows import kernel_of

_MATRIX = ("gemm", "conv", "attention", "rnn")
_LEAST = 6
"""Rows that a model of its own takes; fewer only count for their family's."""
_LEAST_OF_A_WINDOW = 60
_MOST = {"conv": 450, "gemm": 800, "attention": 300, "reduction": 250}
_MOST_OF = {"gconv": 400, "dwconv": 300, "lineconv": 240, "lineconv1": 240, "volumeconv": 260,
            "gapconv": 180}  # fmt: skip
_MOST_ODD = 260
_MOST_OTHERS = 120
"""Shapes that a model keeps: enough for real networks, few enough for a small file."""


class Sample(NamedTuple):
    """A measured kernel."""

    key: str
    phase: int
    kernel: Kernel
    seconds: float


def profile_from_results(
    header: Mapping[str, Any], rows: Sequence[Row], *, device: str | None = None
) -> Profile:
    """Return the profile that fits measured rows; `device` is the catalog's name for it."""
    unit = load_device(device or str(header.get("device", "")))
    samples = list(samples_of(rows))
    if not samples:
        raise InvalidValueError("the results hold no measured kernel; calibrate for longer")
    whole = Profile(
        device=unit.name,
        models={},
        host=host_from(rows),
        updates=fit_updates(rows, unit),
        gap_s=launch_gap(rows),
        errors={"device": CPU_STEPS} if unit.tier == "cpu" else {},
        provenance=dict(header) | {"rows": len(rows), "kernels": len(samples)},
    )
    for met in _MET:
        whole = replace(whole, models=fit_models(samples, unit, met))
        if len(profile_to_json(whole)) < _LARGEST:
            break
    return whole


_MET = (CLOCK, 0.09, 0.2)
_LARGEST = LARGEST - 2000
"""How far measured shapes may be off that a profile does not keep: the first that makes it small
enough, with room for what whole steps tell later."""


CPU_STEPS = (0.86, 1.28)
"""5th and 95th percentile of measured over predicted training steps on a CPU after a calibration of
two minutes: 42 steps of 18 networks on 2 cores of an EPYC of AMD, which nothing was fitted to but
how much of their memory is fresh (docs/cpu.md)."""


def launch_gap(rows: Iterable[Row]) -> float:
    """Return seconds that a launch takes longer from a stream than from a graph; 0 if unknown."""
    found = {r["op"]: r["seconds"] for r in rows if r.get("family") == "launch" and "seconds" in r}
    return max(0.0, float(found.get("device", 0.0)) - float(found.get("graph", np.inf)))


_UPDATES = {"sgd": "sgd", "momentum": "momentum", "adamw_fused": "adamw", "adam_fused": "adam"}
"""Measured optimizers, by the name of ours that runs like them."""


def fit_updates(rows: Iterable[Row], device: Device) -> dict[str, Update]:
    """Return what each optimizer takes by its tensors' sizes, in each type."""
    groups: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        name = _UPDATES.get(str(row.get("op")))
        if row.get("family") == "update" and name is not None and "seconds" in row:
            groups[name, 2 if row["dtype"] in ("bf16", "fp16") else 4].append(row)
    fitted = _tensor_update if device.tier == "cpu" else _block_update
    return {
        f"{name}|{'bf16' if each == 2 else 'fp32'}": fitted(
            OPTIMIZERS[name],
            [(int(row["elements"]),) * int(row["tensors"]) for row in group],
            np.array([row["seconds"] for row in group]),
            each,
            device.memory_bandwidth,
        )
        for (name, each), group in groups.items()
        if len(group) >= _LEAST
    }


def _tensor_update(
    optimizer: Optimizer, sizes: Sequence[tuple[int, ...]], seconds: Floats, each: int, rate: float
) -> TensorUpdate:
    tensors = np.array([len(s) for s in sizes])
    moved = np.array([sum(s) * optimizer.traffic * each for s in sizes])
    columns = np.column_stack([np.ones_like(moved), tensors, moved]) / seconds[:, None]
    floor, tensor_s, byte_s = positive_least_squares(columns, np.ones(len(sizes)))
    return TensorUpdate(floor, tensor_s, 1.0 / max(byte_s * rate, 1e-3))


_BEFORE = BlockUpdate(2.5e-6, 3e-6, 0.7, 4e-6, 0.5)
"""What an update's launches take before any was measured: about an H200's."""
_SURE = 0.03
"""Weight of that against measured rows, whose errors are logarithms."""


def _block_update(
    optimizer: Optimizer, sizes: Sequence[tuple[int, ...]], seconds: Floats, each: int, rate: float
) -> BlockUpdate:
    start = np.log(_BEFORE)
    calm = 0.1

    def off(theta: Floats) -> Floats:
        guess = BlockUpdate(*np.exp(theta))
        found = [guess.seconds(optimizer, s, each, rate, hot=True) for s in sizes]
        return np.concatenate([np.log(found / seconds), _SURE * (theta - start)]) / calm

    low, high = start - 4.0, np.minimum(start + 4.0, np.log([1e-3, 1e-3, 1.2, 1e-3, 1.2]))
    found = levenberg(off, start, np.ones(len(start), dtype=np.bool_), low, high)
    return BlockUpdate(*map(float, np.exp(found)))


def positive_least_squares(columns: Floats, wanted: Floats) -> list[float]:
    """Return coefficients of at least 0 that fit best: the most negative one is dropped in turn."""
    used = list(range(columns.shape[1]))
    values: Floats = np.zeros(0)
    while used:
        values = np.asarray(np.linalg.lstsq(columns[:, used], wanted, rcond=None)[0], dtype=float)
        if values.min() >= 0:
            break
        used.pop(int(values.argmin()))
    result = [0.0] * columns.shape[1]
    for i, value in zip(used, values, strict=False):
        result[i] = float(value)
    return result


AROUND = {"python_s": 1.64, "infer_s": 1.4, "parameter_s": 2.0}
"""What a CPU that computes too does around ops in a real network, in units of an addition's forward
dispatch: found from 30 host-bound training steps of 11 networks on the H200's host."""


def fresh_seconds(rows: Iterable[Row]) -> float:
    """Return seconds for each byte of fresh memory, beyond those of filling known memory."""
    fills = [r for r in rows if r.get("op") in _FILLS and "seconds" in r]
    rates = {op: [r["seconds"] / r["bytes"] for r in fills if r["op"] == op] for op in _FILLS}
    if not all(rates.values()):
        return 0.0
    return max(0.0, float(np.median(rates["fresh"]) - np.median(rates["refill"])))


_FILLS = ("fresh", "refill")


def host_from(rows: Iterable[Row]) -> Host | None:
    """Return the host's measured dispatch costs."""
    ops: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    steps: dict[str, list[tuple[float, float]]] = defaultdict(list)
    rows = list(rows)
    for row in rows:
        if row.get("family") != "host" or "seconds" not in row:
            continue
        if row["form"] == "step":
            steps[str(row["op"])].append((row["tensors"], row["seconds"]))
            continue
        name = str(row["op"]) + ("@autocast" if row.get("autocast") else "")
        ops[name][str(row["form"])].append(float(row["seconds"]))
    if not ops:
        return None
    costs = {}
    for name, forms in ops.items():
        infer = float(np.mean(forms.get("infer") or forms.get("forward") or [0.0]))
        forward = float(np.mean(forms.get("forward") or [infer]))
        costs[name] = (infer, forward, float(np.mean(forms.get("backward") or [0.0])))
    update = {}
    for name, points in steps.items():
        tensors, seconds = np.array(points).T
        columns = np.column_stack([np.ones_like(tensors), tensors]) / seconds[:, None]
        fixed, each = positive_least_squares(columns, np.ones(len(points)))
        update[_UPDATES.get(name, name)] = (fixed, each)
    unit = costs.get("add", next(iter(costs.values())))[1]
    return Host(
        fresh_s=fresh_seconds(rows),
        ops=costs,
        update=update,
        **{name: times * unit for name, times in AROUND.items()},
    )


def samples_of(rows: Iterable[Row]) -> Iterable[Sample]:
    """Yield measured kernels; some backward passes are what both take beyond the forward one."""
    known = list(rows)
    types = {r.get("dtype") for r in known}
    forward = {_case(r): r["seconds"] for r in known if r.get("form") == "forward" and _paired(r)}
    for row in known:
        if "seconds" not in row or row.get("family") == "host":
            continue
        seconds = float(row["seconds"])
        if row.get("form") == "both":
            seconds -= forward.get(_case(row), np.inf)
            if not seconds > 0:
                continue
        made = kernel_of(row)
        if made is None:
            continue
        phase, kernel = made
        window = kernel.window if kernel.stride == 1 else ()
        runs = int(acting(np.array(phase), np.array(kernel.stride)))
        depth = _depth(runs, kernel)
        species = species_of(
            kernel.name, kernel.family, runs, kernel.dims, kernel.each, depth, window,
            kernel.axes, kernel.dilation,
        )  # fmt: skip
        dtype = str(row["dtype"])
        if kernel.family not in _MATRIX and dtype == "tf32":
            dtype = "fp32"
        own = kernel.family == "norm" or species.startswith("dwconv")
        if dtype == "fp16" and not own:
            # Two bytes are two bytes; only batch norm and depthwise convolutions have kernels of
            # their own for either type (cuDNN's in fp16, PyTorch's in bf16).
            dtype = "bf16" if "bf16" in types else "fp16"
        yield Sample(key_of(species, dtype, str(row.get("layout", ""))), phase, kernel, seconds)


def _paired(row: Row) -> bool:
    return row.get("family") in ("attention", "rnn") and "seconds" in row


def _case(row: Row) -> tuple[tuple[str, Any], ...]:
    """Return what the two passes of a case share."""
    apart = ("form", "seconds", "spread")
    return tuple(sorted((k, v) for k, v in row.items() if k not in apart))


def _depth(phase: int, kernel: Kernel) -> float:
    area = kernel.window[0] * kernel.window[1]
    return kernel.dims[1] if phase == 1 else kernel.dims[1 if phase == 2 else 2] / area


def fit_models(
    samples: Sequence[Sample], device: Device, met: float = CLOCK
) -> dict[str, KernelModel]:
    """Return a model for every key with enough rows, and one for every family and type.

    Measured shapes are kept until the others are met within a relative error of `met`.
    Convolutions with the common windows have models of their own only if all windows have enough.
    """
    counts = Counter(sample.key for sample in samples)
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        same = windows_of(sample.key)
        few = any(counts[key] < _LEAST_OF_A_WINDOW for key in same)
        groups[same[-1] if same and few else sample.key].append(sample)
        if sample.kernel.family not in _MATRIX:
            dtype = sample.key.split("|")[1]
            groups[f"{sample.kernel.family}|{dtype}|"].append(sample)
    return {
        key: fit_model(group, key, device, met)
        for key, group in groups.items()
        if len(group) >= _LEAST
    }


def fit_model(group: Sequence[Sample], key: str, device: Device, met: float = CLOCK) -> KernelModel:
    """Return the model of one key."""
    table = kernel_table([(0, s.phase, s.kernel) for s in group])
    seconds = np.array([s.seconds for s in group])
    family = group[0].kernel.family
    flops, traffic = work_of(table, device)
    peak = device.peak(key.split("|")[1]) if family in _MATRIX else 1.0
    bandwidth = device.memory_bandwidth
    e_c, e_b, floor = fit_base(flops, traffic, seconds, peak, bandwidth)
    plain = KernelModel(
        compute=e_c, bandwidth=e_b, floor_s=floor, error=0.0, spread=0.0, rows=len(group)
    )
    off = np.log(seconds / plain.base(flops, traffic, peak, bandwidth))
    spread = float(np.sqrt(np.mean(off**2)))
    features = features_of(family, table, np.arange(len(group)), device.units)
    features, off = _distinct(features, off)
    if len(off) < _LEAST:
        return KernelModel(
            compute=e_c, bandwidth=e_b, floor_s=floor, error=spread, spread=spread, rows=len(group)
        )
    most = _most(key, family)
    residual, error = fit_residual(features, off, scales_of(key, family), most, met)
    return KernelModel(
        compute=e_c, bandwidth=e_b, floor_s=floor, error=error, spread=spread, rows=len(group),
        residual=residual,
    )  # fmt: skip


def _most(key: str, family: str) -> int:
    """Return how many shapes a model keeps."""
    if ".odd|" in key:
        return _MOST_ODD
    return _MOST_OF.get(key.partition(".")[0]) or _MOST.get(family, _MOST_OTHERS)


def _distinct(features: Floats, off: Floats) -> tuple[Floats, Floats]:
    """Return each shape once, with the median of its measurements."""
    steps = np.rint(features * FIXED) / FIXED
    rounded, index = np.unique(steps, axis=0, return_inverse=True)
    index = index.ravel()
    return rounded, np.array([np.median(off[index == i]) for i in range(len(rounded))])
