"""Fit the profiles of devices whose operators others have timed, and judge them.

    python benchmarks/published_profiles.py [DEVICE ...] [--data FOLDER] [--out FOLDER] [--table]

Reads the tables of published operator timings (by default `../shared/data/published`), fits one
profile for each device and writes `src/traincast/hardware/profiles/DEVICE.json`. `--table` prints
the errors of the shipped profiles for docs/profiles.md instead of fitting.

What happens to a published row:

1. It becomes a row of our own benchmark (`published_rows.py`) and from that the kernel that a
   program would have, with its FLOPs and bytes.
2. NeuSight timed one call on an idle device between two events, so the host's time up to the
   launch (10 to 60 µs, alike for all sizes of an op) counts; in a training step it hides behind
   the queue. It is taken off, and rows of which it is over a third are left out.
3. A device without rows of its own kind takes those of the same chip on another board, scaled by
   the datasheets: matrix kernels by peak, others by bandwidth.
4. Of thousands of shapes a few hundred are kept, half of them spread as far apart as can be, half
   at random. The errors are those on the rows that were not kept.
5. A product timed in one pass stands for the other passes where those were not timed.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from published_rows import FOLDER, Published, product, published
from traincast.estimate.calibrated.models import KernelModel
from traincast.estimate.calibrated.profile import (
    LARGEST,
    Profile,
    profile_from_json,
    profile_to_json,
)
from traincast.estimate.calibrated.species import features_of, scales_of, work_of
from traincast.estimate.program import Floats, Kernels, kernel_table
from traincast.hardware import Device, load_device
from traincast.measure.calibration import Sample, fit_model, fit_models, samples_of
from traincast.report.files import write_text

MAKER = "benchmarks/published_profiles.py"
OUT = Path(__file__).resolve().parents[1] / "src/traincast/hardware/profiles"
MATRIX = ("gemm", "conv", "attention")
KEPT = {"gemm": 220, "conv": 220, "attention": 120, "norm": 80, "softmax": 80}
KEPT_ELSE = 40
"""Shapes that a model keeps, by family; elementwise kernels have one feature only."""
FLAT = {"linear": 1.65, "conv": 2.2, "ln": 1.5, "softmax": 1.1}
"""NeuSight's shortest times over those of its batched products; other ops' are alike."""
BEFORE_LAUNCH = {"NVIDIA": 0.55, "AMD": 0.95}
"""Share of NeuSight's shortest times that longer kernels of the same op also show, in front: what
a line through the times of elementwise ops has at size 0."""
SHORTEST = {"gemm": 6e-6, "conv": 10e-6, "attention": 20e-6}
SHORTEST_ELSE = 3e-6
"""What a kernel that has next to nothing to do takes on a busy device, in seconds; a little over
the H200's. Only where no short kernel was timed."""
TRANSPOSED = {"data": 1.03, "weight": 1.06}
"""A gradient's product over the forward one of the same sides, in 16 bits and by the H200's own
profile; in fp32 there all passes take the same."""
SIBLINGS = {
    "a100-80gb": {"a100-80gb": "", "a100-80gb-pcie": "neusight"},
    "a100-40gb": {"a100-80gb": "", "a100-40gb-pcie": "neusight", "a100-80gb-pcie": "conv"},
    "a100-80gb-pcie": {"a100-80gb-pcie": "", "a100-80gb": "ett"},
    "a100-40gb-pcie": {"a100-40gb-pcie": "", "a100-80gb-pcie": "simumax conv", "a100-80gb": "ett"},
    "gh200": {"gh200": "", "h100": ""},
    "v100": {"v100": "", "v100-pcie": "neusight"},
    "v100-pcie": {"v100-pcie": "", "v100": "fp16 data weight"},
    "p100": {"p100": "", "p100-pcie": "neusight"},
    "p100-pcie": {"p100-pcie": "", "p100": "fp16 data weight"},
}
"""For a device: whose rows it is fitted to, and which of them (source, family, type or form)."""
SOURCES = {
    "neusight": "sitar-lab/NeuSight, MIT: fp32 operators, PyTorch 2.1, TF32 off",
    "aiconfigurator": "ai-dynamo/aiconfigurator, Apache-2.0: bf16 products, TensorRT-LLM",
    "simumax": "MooreThreads/SimuMax, Apache-2.0: bf16 products by layout, Transformer Engine",
    "ett": "DebarghaG/estimate-train-time, MIT: fp16 operators of transformers, PyTorch",
    "deepbench": "baidu-research/DeepBench, Apache-2.0: fp32 and fp16, cuBLAS and cuDNN",
}


class Case(NamedTuple):
    """A sample with where it comes from."""

    source: str
    device: str
    sample: Sample


def gathered(rows: Iterable[Published], target: str) -> list[Case]:
    """Return what a device is fitted to, as it would have been timed there in a queue."""
    wanted = SIBLINGS.get(target, {target: ""})
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for p in rows:
        only = wanted.get(p.device)
        told = {p.source, p.row["family"], p.row["dtype"], str(p.row.get("form"))}
        if only is not None and (not only or told & set(only.split())):
            case = "attention" if p.row["family"] == "attention" else p.case
            groups[p.source, p.device, case].append(p.row)
    unit = load_device(target)
    found = []
    flat = {k[1]: _shortest(v) for k, v in groups.items() if k[0] == "neusight" and k[2] == "bmm"}
    for (source, name, case), members in groups.items():
        measured_on = load_device(name)
        samples = list(samples_of(members))
        if source == "neusight":
            shortest = min(_shortest(members), FLAT.get(case, 1.0) * flat.get(name, np.inf))
            off = BEFORE_LAUNCH[measured_on.vendor] * shortest
            samples = [s._replace(seconds=s.seconds - off) for s in samples if s.seconds > 3 * off]
        for sample in samples:
            scale = _scale(sample, measured_on, unit)
            found.append(Case(source, name, sample._replace(seconds=sample.seconds * scale)))
    return found


def _shortest(rows: Sequence[dict[str, Any]]) -> float:
    return min(float(row["seconds"]) for row in rows)


def _scale(sample: Sample, one: Device, other: Device) -> float:
    """Return what a kernel takes on another board of the same chip, over the measured one."""
    if one == other:
        return 1.0
    if sample.kernel.family in MATRIX:
        dtype = sample.key.split("|")[1]
        return one.peak(dtype) / other.peak(dtype)
    return one.memory_bandwidth / other.memory_bandwidth


def completed(cases: list[Case]) -> list[Case]:
    """Return cases, with forward products as the other passes' where those were not timed."""
    count = Counter(c.sample.key for c in cases)
    made = []
    for case in cases:
        key, _, kernel, seconds = case.sample
        species, dtype, _ = key.split("|")
        if species != "gemm.forward":
            continue
        rows, columns, depth = (int(v) for v in kernel.dims[:3])
        for form in ("data", "weight"):
            if count[f"gemm.{form}|{dtype}|"] < 30:
                row = product(form, dtype, rows, columns, depth)
                row["seconds"] = seconds * (1.0 if dtype == "fp32" else TRANSPOSED[form])
                made += [
                    Case(f"{case.source} (forward)", case.device, s) for s in samples_of([row])
                ]
    return cases + made


def _table(samples: Sequence[Sample]) -> Kernels:
    return kernel_table([(0, s.phase, s.kernel) for s in samples])


def thinned(samples: list[Sample], units: int) -> tuple[list[Sample], list[Sample]]:
    """Return the samples to fit, and the others."""
    family = samples[0].kernel.family
    most = KEPT.get(family, KEPT_ELSE)
    order = np.random.default_rng(0).permutation(len(samples))
    if len(samples) <= most:
        return samples, []
    pool = order[: 20 * most]
    table = _table([samples[i] for i in pool])
    scaled = features_of(family, table, np.arange(len(pool)), units)
    scaled = scaled / scales_of(family, family)
    chosen = _far(scaled, most // 2)
    chosen += [i for i in range(len(pool)) if i not in set(chosen)][: most - len(chosen)]
    kept = {int(pool[i]) for i in chosen}
    split: tuple[list[Sample], list[Sample]] = ([], [])
    for i, sample in enumerate(samples):
        split[i not in kept].append(sample)
    return split


def _far(points: Floats, count: int) -> list[int]:
    """Return points of which each is as far from those before it as can be."""
    chosen = [0]
    near = ((points - points[0]) ** 2).sum(1)
    while len(chosen) < count:
        chosen.append(int(near.argmax()))
        near = np.minimum(near, ((points - points[chosen[-1]]) ** 2).sum(1))
    return chosen


def anchored(samples: list[Sample]) -> list[Sample]:
    """Return samples, with tiny kernels where none was timed that tells what a launch takes.

    Without them a fit takes the overhead from kernels a hundred times as long.
    """
    family = samples[0].kernel.family
    shortest = SHORTEST.get(family, SHORTEST_ELSE)
    if min(s.seconds for s in samples) < 2.0 * shortest:
        return samples
    made = []
    for sample in samples[:: min(10, max(len(samples) // 3, 1))]:
        kernel, shrink = sample.kernel, 1e-3 * min(1.0, shortest / sample.seconds)
        dims = list(kernel.dims)
        if family == "gemm":
            dims = [32.0, 32.0, 32.0, 1.0 if dims[3] <= 1 else 4.0]
        else:
            along = 2 if family == "conv" and sample.phase == 2 else 0
            dims[along] = max(dims[along] * shrink, 1.0)
        work = {name: getattr(kernel, name) * shrink for name in ("flops", "read", "write")}
        small = kernel._replace(dims=tuple(dims), **work)
        made.append(sample._replace(kernel=small, seconds=shortest))
    return samples + made


def off(
    model: KernelModel, samples: Sequence[Sample], key: str, device: Device
) -> tuple[Floats, Floats]:
    """Return |log(predicted / measured)| by the physical parameters alone, and corrected."""
    table, family = _table(samples), samples[0].kernel.family
    flops, traffic = work_of(table, device)
    peak = device.peak(key.split("|")[1]) if family in MATRIX else 1.0
    base = np.log(model.base(flops, traffic, peak, device.memory_bandwidth))
    measured = np.log([s.seconds for s in samples])
    extra = np.zeros(len(samples))
    if model.residual is not None:
        shapes = features_of(family, table, np.arange(len(samples)), device.units)
        extra = model.residual.at(shapes)[0]
    return np.abs(base - measured), np.abs(base + extra - measured)


def judged(
    key: str, all_of: list[Sample], rest: list[Sample], model: KernelModel, device: Device
) -> dict[str, Any]:
    """Return errors on rows that were left out; where all were kept, of a fit to three quarters."""
    if len(rest) < len(all_of) // 3:
        order = np.random.default_rng(1).permutation(len(all_of))
        cut = len(all_of) * 3 // 4
        if cut < 12:
            return {"rows": len(all_of)}
        rest = [all_of[i] for i in order[cut:]]
        model = fit_model(anchored([all_of[i] for i in order[:cut]]), key, device)
    base, best = off(model, rest, key, device)
    quantiles = [round(float(np.percentile(v, q)), 3) for v in (base, best) for q in (50, 90)]
    return {
        "rows": len(all_of),
        "left_out": len(rest),
        "base": quantiles[:2],
        "model": quantiles[2:],
    }


def fitted(rows: list[Published], name: str) -> Profile:
    """Return the profile of a device."""
    device = load_device(name)
    cases = completed(gathered(rows, name))
    groups: dict[str, list[Sample]] = defaultdict(list)
    for case in cases:
        groups[case.sample.key].append(case.sample)
    split = {key: thinned(group, device.units) for key, group in groups.items()}
    models = fit_models([s for kept, _ in split.values() for s in anchored(kept)], device)
    timed = Counter(c.sample.key for c in cases if c.source in SOURCES)
    errors = {
        key: judged(key, groups[key], rest, models[key], device)
        for key, (_, rest) in sorted(split.items())
        if key in models and timed[key] > len(groups[key]) // 2
    }
    return Profile(
        device=name,
        models=models,
        host=None,
        provenance={
            "device": device.title,
            "made_by": MAKER,
            "sources": _sources(cases),
            "kept": sum(len(kept) for kept, _ in split.values()),
            "left_out_errors": errors,
        },
    )


def _sources(cases: list[Case]) -> list[dict[str, Any]]:
    count = Counter((c.source, c.device) for c in cases)
    return [
        {"source": SOURCES[source], "measured_on": device, "rows": n}
        for (source, device), n in sorted(count.items())
        if source in SOURCES
    ]


def table(folder: Path, names: Sequence[str]) -> None:
    """Print the errors of shipped profiles on rows left out, by family: means over its kernels."""
    print(
        "| device | kernels | type | rows | left out | base: median, 90th | model: median, 90th |"
    )
    print("|---|---|---|---:|---:|---:|---:|")
    for name in names:
        profile = profile_from_json((folder / f"{name}.json").read_text(), name)
        groups: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
        for key, e in profile.provenance["left_out_errors"].items():
            species, dtype, _ = key.split("|")
            if "left_out" in e:
                numbers = [e["rows"], e["left_out"], *e["base"], *e["model"]]
                groups[_label(species), dtype].append(numbers)
        for (label, dtype), members in sorted(groups.items()):
            found = np.array(members)
            rows, left = found[:, :2].sum(0)
            means = (found[:, 2:] * found[:, 1:2]).sum(0) / left
            b50, b90, m50, m90 = (f"{v:.1%}" if v < 0.1 else f"{v:.0%}" for v in np.expm1(means))
            print(f"| {name} | {label} | {dtype} | {rows:,.0f} | {left:,.0f} | {b50}, {b90} "
                  f"| {m50}, {m90} |")  # fmt: skip


def _label(species: str) -> str:
    parts = {"gemm": "products", "conv": "convolutions", "attention": "attention",
             "norm": "norm, softmax", "softmax": "norm, softmax"}  # fmt: skip
    return next((label for part, label in parts.items() if part in species), "elementwise")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("device", nargs="*")
    parser.add_argument("--data", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        found = (f.stem for f in sorted(args.out.glob("*.json")) if MAKER in f.read_text())
        table(args.out, args.device or list(found))
        return
    rows = list(published(args.data))
    for name in args.device or sorted({p.device for p in rows} | SIBLINGS.keys()):
        profile = fitted(rows, name)
        text = profile_to_json(profile)
        if len(text) > LARGEST:
            raise SystemExit(f"{name}: {len(text)} bytes are more than a profile may take")
        write_text(args.out / f"{name}.json", text)
        print(f"{name}: {len(profile.models)} models, {len(text) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
