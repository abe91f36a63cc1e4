"""The TOML file: what it may say, and how a wrong one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from traincast.errors import InputFileError
from traincast.measure.sweep.plan import columns, plan_of, read_sweep

GOOD = """
[sweep]
design = "latin"
runs = 40
seed = 7
repeats = 2
frameworks = ["mxnet", "pytorch"]
output = "results"
time_limit_s = 30

[factors]
kernel = [1, 3]
batch = { from = 16, to = 256, scale = "log" }
dropout = { from = 0.0, to = 0.5 }

[fixed]
layers = 1
"""


@pytest.fixture
def refused(tmp_path: Path):
    def read(text: str) -> str:
        path = tmp_path / "s.toml"
        path.write_text(text)
        with pytest.raises(InputFileError) as caught:
            plan_of(read_sweep(path))
        return str(caught.value)

    return read


def test_a_good_file(tmp_path: Path):
    (tmp_path / "s.toml").write_text(GOOD)
    sweep = read_sweep(tmp_path / "s.toml")
    assert sweep.output == tmp_path / "results"
    assert sweep.frameworks == ("mxnet", "pytorch")
    assert sweep.time_limit == 30.0
    assert columns(sweep) == ("kernel", "dropout", "batch")
    plan = plan_of(sweep)
    assert len(plan.runs) == 40 * 2 * 2
    assert len({(run.framework, run.key) for run in plan.runs}) == 160
    assert all(run.settings.layers == 1 for run in plan.runs)
    assert all(run.settings.samples % run.settings.batch == 0 for run in plan.runs)


def test_the_order_is_random_but_the_same_each_time(tmp_path: Path):
    (tmp_path / "s.toml").write_text(GOOD)
    first, second = (plan_of(read_sweep(tmp_path / "s.toml")).runs for _ in range(2))
    assert first == second
    # Of 80 shuffled runs, half of them MXNet's, 40 hold 20 ± 2.2.
    assert abs(sum(run.framework == "mxnet" for run in first[:40]) - 20) < 10


def test_every_point_is_run_once_before_any_is_repeated(tmp_path: Path):
    (tmp_path / "s.toml").write_text(GOOD)
    assert [run.repeat for run in plan_of(read_sweep(tmp_path / "s.toml")).runs] == [0] * 80 + [
        1
    ] * 80


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("runs = 40", "", ["sweep.runs is missing", "runs = 200"]),
        ("runs = 40", "runs = 0", ["sweep.runs = 0", "greater than or equal to 1"]),
        ("runs = 40", "runz = 40", ["unknown key sweep.runz", "did you mean runs"]),
        ('design = "latin"', 'design = "star"', ["sweep.design = 'star'", "'latin' or 'grid'"]),
        ('design = "latin"', 'design = "grid"', ["sweep.runs", "factors.batch", "count = N"]),
        ('"mxnet", ', '"mxnot", ', ["sweep.frameworks.0 = 'mxnot'", "'mxnet'"]),
        ("time_limit_s = 30", "time_limit_s = nan", ["sweep.time_limit_s"]),
        ("[1, 3]", "[]", ["factors.kernel has no values"]),
        ("[1, 3]", '[1, "3"]', ["factors.kernel: '3' is no whole number from 1 to 32"]),
        ("[1, 3]", "[1, 3.5]", ["factors.kernel: 3.5 is no whole number"]),
        ("[1, 3]", "3", ["factors.kernel"]),
        ("kernel = [1, 3]", "kernels = [1, 3]", ["factors.kernels", "did you mean kernel"]),
        ("from = 16, to = 256", "from = 256, to = 16", ["factors.batch", "ends before it starts"]),
        ("from = 16", "from = 0", ["factors.batch", "log scale starts above 0"]),
        ("from = 16", "form = 16", ["factors.batch.from is missing", "factors.batch.form"]),
        ("to = 256", "to = 256.5", ["factors.batch: 256.5 is no whole number"]),
        ("to = 0.5", "to = 1.5", ["factors.dropout: 1.5 is no number from 0 to 0.95"]),
        ("layers = 1", "layers = 0", ["fixed.layers: 0 is no whole number"]),
        ("layers = 1", "kernel = 1", ["fixed.kernel is among the factors too"]),
        ("layers = 1", 'pool = "mean"', ["fixed.pool: 'mean' is not one of none, max, avg"]),
        ("[fixed]", "[fixd]", ["unknown key fixd", "did you mean fixed"]),
        ("kernel = [1, 3]", "kernel = [1, 3", ["is not TOML"]),
    ],
)
def test_a_wrong_file_is_refused_by_key(refused, old, new, parts):
    assert old in GOOD
    said = refused(GOOD.replace(old, new, 1))
    for part in ["s.toml", *parts]:
        assert part in said


def test_all_problems_are_named_at_once(refused):
    said = refused(GOOD.replace("[1, 3]", "[0]").replace("layers = 1", "layers = 1000"))
    assert "2 problems" in said
    assert "factors.kernel" in said
    assert "fixed.layers" in said


def test_a_missing_file(tmp_path: Path):
    with pytest.raises(InputFileError, match="No such file"):
        read_sweep(tmp_path / "none.toml")


def test_a_file_that_is_no_text(tmp_path: Path):
    (tmp_path / "s.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputFileError, match="is not TOML"):
        read_sweep(tmp_path / "s.toml")


def test_a_grid_that_is_too_large(refused):
    ranges = "".join(
        f"{name} = {{ from = 1, to = 30, count = 30 }}\n"
        for name in ("kernel", "filters", "batch", "threads")
    )
    said = refused('[sweep]\ndesign = "grid"\n[factors]\n' + ranges)
    assert "more than 100,000 points" in said


def test_what_cannot_be_trained_is_left_out_with_its_reason(tmp_path: Path):
    (tmp_path / "s.toml").write_text(
        '[sweep]\ndesign = "grid"\n[factors]\nkernel = [3, 4]\nworkers = [1, 2, 3]\n'
        'padding = ["same", "valid"]\n'
    )
    plan = plan_of(read_sweep(tmp_path / "s.toml"))
    assert len(plan.runs) == 6
    assert plan.left_out == {
        "an even kernel has no equal padding on both sides": 2,
        "3 workers × 1 threads are more than most_threads": 4,
    }


def test_points_that_rounding_makes_equal_are_run_once(tmp_path: Path):
    (tmp_path / "s.toml").write_text(
        '[sweep]\ndesign = "grid"\n[factors]\nsamples = [128, 130]\n[fixed]\nbatch = 64\n'
    )
    plan = plan_of(read_sweep(tmp_path / "s.toml"))
    assert [run.settings.samples for run in plan.runs] == [128]
    assert plan.left_out == {"the same as another point": 1}
