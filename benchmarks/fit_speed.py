"""How long a fit of 1,000 runs with 10 factors takes, and 10,000 predictions.

    python benchmarks/fit_speed.py [RUNS]

Everything that `traincast fit` does is counted: the choice of λ by ten-fold cross-validation, three
evolutions, polish, 200 bootstrap samples, two extrapolation tests, and the other learners on the
same folds. Times are of the wall clock and of all processors together.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from traincast.fit.build import FormWish, load
from traincast.fit.fitting import Options, fit_form
from traincast.fit.judge import judge
from traincast.fit.prepare import Wish

SEED = 7


def write_runs(path: Path, count: int) -> None:
    rng = np.random.default_rng(SEED)
    numbers = {
        name: rng.choice(values, count).astype(float)
        for name, values in {
            "kernel": [1, 3, 5, 7], "filters": [4, 8, 16, 32, 64], "layers": [1, 2, 3, 4],
            "stride": [1, 2, 3], "image": [16, 28, 32, 64], "classes": [2, 10, 100],
            "batch": [16, 32, 64, 128, 256], "workers": [1, 2, 4, 8],
        }.items()
    }  # fmt: skip
    texts = {
        "optimizer": rng.choice(["sgd", "adam", "rmsprop"], count),
        "activation": rng.choice(["relu", "tanh"], count),
    }
    n = numbers
    work = 0.02 * n["kernel"] ** 2 + 0.05 * n["filters"] + 0.3 * n["layers"] + 0.01 * n["image"]
    work += np.where(texts["optimizer"] == "adam", 0.4, 0.0) + 0.2
    times = work * (n["batch"] / 16) ** -0.4 * n["workers"] ** -0.8 + 0.3
    times *= np.exp(0.05 * rng.normal(size=count))
    columns = {**numbers, **texts, "epoch_s": times}
    lines = [",".join(columns)]
    lines += [",".join(str(v) for v in row) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.csv"
        write_runs(path, count)
        start, cpu = time.perf_counter(), time.process_time()
        runs, form = load(path, Wish(), FormWish())
        stages: dict[str, float] = {}

        def tell(what: str, _: float) -> None:
            stages.setdefault(what, time.perf_counter() - start)

        fit = fit_form(form, runs, Options(), tell)
        fitted = time.perf_counter() - start, time.process_time() - cpu
        judged = judge(fit, form, ["batch", "workers"], tell)
        whole = time.perf_counter() - start, time.process_time() - cpu
    print(f"{len(runs.times)} runs, {len(runs.factors)} factors, {len(form.constants)} constants")
    print(f"fit and bootstrap                   {fitted[0]:6.2f} s wall, {fitted[1]:6.2f} s CPU")
    print(f"with judgement and other learners   {whole[0]:6.2f} s wall, {whole[1]:6.2f} s CPU")
    for what, began in stages.items():
        print(f"    {what} from {began:.2f} s")
    for name, score in judged.scores.items():
        print(f"    {name:18} MAPE {score.mape:.1%}")
    rng = np.random.default_rng(SEED)
    many = {n: v[rng.integers(len(runs.times), size=10_000)] for n, v in runs.columns.items()}
    works = {"10,000 predictions": fit.model.times, "with intervals": fit.model.forecast}
    for what, work in works.items():
        cpu = time.process_time()
        work(many)
        print(f"{what:35} {time.process_time() - cpu:6.3f} s CPU")


if __name__ == "__main__":
    main()
