"""Tables that cannot be fitted, or only in part: the message names the column and the rows."""

from __future__ import annotations

import contextlib
import gzip

import numpy as np
import pytest
from fit_runs import fitted, reference_runs, write_table

from traincast.errors import InputFileError, InvalidValueError, TraincastError, UnknownNameError
from traincast.fit.build import FormWish, load
from traincast.fit.prepare import Wish
from traincast.fit.table import read_table, say_rows


def runs_of(path, **wish):
    return load(path, Wish(**wish), FormWish())[0]


def with_cell(row: int, column: str, text: str) -> dict[str, list]:
    """The table with one cell replaced; rows count from 2, after the header."""
    columns = {name: list(values) for name, values in reference_runs(0.03).items()}
    columns[column][row - 2] = text
    return columns


BAD_CELLS = {
    "text in a number": (5, "batch", "many", "column batch: 'many' in row 5"),
    "infinity": (6, "filters", "inf", "column filters: 'inf' in row 6"),
    "a negative time": (7, "epoch_s", "-1", "column epoch_s is zero or negative in row 7"),
    "a zero time": (8, "epoch_s", "0", "column epoch_s is zero or negative in row 8"),
    "text in the time": (9, "epoch_s", "oom", "column epoch_s: 'oom' in row 9"),
    "a negative factor": (10, "kernel", "-3", "column kernel is negative in row 10"),
}


@pytest.mark.parametrize("case", BAD_CELLS)
def test_a_bad_cell_is_named(write, case: str) -> None:
    row, column, text, message = BAD_CELLS[case]
    with pytest.raises(InputFileError) as caught:
        runs_of(write(with_cell(row, column, text)))
    assert message in str(caught.value)
    assert caught.value.exit_status == 2


def test_a_zero_cannot_be_scaled_with_but_can_be_added(write) -> None:
    path = write(with_cell(11, "batch", "0"))
    with pytest.raises(InputFileError, match=r"batch is zero or negative in row 11.*--intrinsic"):
        runs_of(path, extrinsic=("workers", "batch"))
    assert runs_of(path).factor("batch").role == "intrinsic"


@pytest.mark.parametrize("text", ["", "nan", "NaN", "N/A"])
@pytest.mark.parametrize("column", ["epoch_s", "filters"])
def test_runs_with_gaps_are_left_out_and_named(write, column: str, text: str) -> None:
    runs = runs_of(write(with_cell(12, column, text)))
    assert len(runs.times) == 191
    assert 12 not in runs.rows
    assert f"{column} is missing in row 12: left out of the fit" in runs.warnings


def test_an_unknown_column_is_refused_with_those_there_are(write) -> None:
    path = write(reference_runs())
    with pytest.raises(UnknownNameError, match="unknown column 'batches'; did you mean batch"):
        runs_of(path, extrinsic=("batches",))
    with pytest.raises(UnknownNameError, match="unknown column 'seconds'"):
        runs_of(path, time="seconds")


def test_three_rows_are_too_few(write) -> None:
    columns = {name: values[:3] for name, values in reference_runs().items()}
    with pytest.raises(InputFileError, match=r"3 usable runs.*at least 8"):
        runs_of(write(columns))


def test_more_constants_than_runs_are_refused(write) -> None:
    rng = np.random.default_rng(0)
    columns = {f"f{i}": rng.uniform(1, 9, 10) for i in range(6)} | {"time_s": rng.uniform(1, 2, 10)}
    with pytest.raises(InvalidValueError, match="10 runs cannot fix 13 constants"):
        fitted(write(columns))


def test_a_constant_factor_gets_no_number(write) -> None:
    columns = {"classes": np.full(192, 10.0), **reference_runs(0.03)}
    fit = fitted(write(columns))
    assert fit.runs.left_out["classes"] == "is 10 in every run"
    assert "classes is 10 in every run: it gets no constant" in fit.warnings
    assert not any("classes" in key for key in fit.model.original)


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_of_two_factors_that_move_together_one_gets_a_number(write, power: float) -> None:
    columns = reference_runs(0.03)
    times = columns.pop("epoch_s")
    columns |= {"channels": 3 * columns["filters"] ** power, "epoch_s": times}
    fit = fitted(write(columns))
    assert "channels always changes together with filters" in " ".join(fit.warnings)
    assert not any("channels" in key for key in fit.model.original)


def test_levels_that_stand_for_numbers_move_together_too(write) -> None:
    columns = reference_runs(0.03)
    times = columns.pop("epoch_s")
    words = {1: "one", 3: "three", 5: "five", 7: "seven"}
    columns |= {"word": [words[int(v)] for v in columns["kernel"]], "epoch_s": times}
    runs = runs_of(write(columns))
    assert "one constant stands for both" in " ".join(runs.warnings)


def test_a_product_of_other_factors_gets_no_number(write) -> None:
    rng = np.random.default_rng(1)
    workers, batch = rng.choice([1, 2, 4, 8], 60), rng.choice([16, 32, 64], 60)
    columns = {"kernel": rng.choice([1, 3, 5], 60), "workers": workers, "batch": batch,
               "global_batch": workers * batch, "time_s": rng.uniform(1, 2, 60)}  # fmt: skip
    runs = runs_of(write(columns))
    assert runs.left_out["global_batch"] == "is a product of powers of workers, batch"


def test_a_level_with_one_run_gets_no_number(write) -> None:
    columns = reference_runs(0.03)
    times = columns.pop("epoch_s")
    names = ["sgd", "adam"] * 96
    names[20] = "lamb"
    columns |= {"optimizer": names, "epoch_s": times}
    fit = fitted(write(columns))
    assert "optimizer=lamb has one run (row 22): it gets no coefficient" in " ".join(fit.warnings)
    assert fit.runs.factor("optimizer").levels == ("adam", "sgd")
    with pytest.raises(UnknownNameError, match="unknown level of optimizer 'lamb'"):
        fit.model.columns([{"optimizer": "lamb"}])


def test_levels_cost_what_they_cost_more_than_the_cheapest(write) -> None:
    columns = reference_runs()
    times = columns.pop("epoch_s")
    names = np.resize(["sgd", "adam", "rmsprop"], 192)
    extra = {"sgd": 0.0, "adam": 1.5, "rmsprop": 0.75}
    scale = columns["workers"] ** -0.9 * (columns["batch"] / 32) ** -0.3
    times = times + np.array([extra[n] for n in names]) * scale
    path = write({**columns, "optimizer": list(names), "epoch_s": times})
    found = fitted(path, reference={"batch": 32.0}).model.original
    assert found["level:optimizer=sgd"].value == 0
    assert found["level:optimizer=adam"].value == pytest.approx(1.5, abs=1e-3)
    assert found["level:optimizer=rmsprop"].value == pytest.approx(0.75, abs=1e-3)
    assert found["base:base"].value == pytest.approx(0.0, abs=1e-3)


def test_levels_among_extrinsic_factors_multiply(write) -> None:
    columns = reference_runs()
    times = columns.pop("epoch_s") - 2
    names = np.resize(["gpu", "gpu", "cpu"], 192)
    times = times * np.where(names == "cpu", 7.0, 1.0) + 2
    path = write({**columns, "machine": list(names), "epoch_s": times})
    wish = Wish(extrinsic=("workers", "batch", "machine"))
    found = fitted(path, wish).model.original
    assert found["multiplier:machine=cpu"].value == pytest.approx(7.0, rel=1e-3)


def test_a_factor_that_is_off_costs_nothing(write) -> None:
    """0 to any power is 0; with one value besides 0 its power means nothing and is 1."""
    columns = reference_runs()
    times = columns.pop("epoch_s")
    dropout = np.resize([0.0, 0.5, 0.0, 0.5, 0.5], 192)
    scale = columns["workers"] ** -0.9 * (columns["batch"] / 32) ** -0.3
    times = times + 3.0 * dropout * scale
    path = write({**columns, "dropout": dropout, "epoch_s": times})
    model = fitted(path, reference={"batch": 32.0}).model
    assert model.original["coefficient:dropout"].value == pytest.approx(3.0, abs=1e-3)
    assert model.original["exponent:dropout"].value == 1.0


def test_products_of_factors_are_found(write) -> None:
    rng = np.random.default_rng(2)
    k, f, w = (rng.choice(v, 150).astype(float) for v in ([1, 3, 5], [8, 16, 32], [1, 2, 4]))
    times = (0.01 * k**2 * f**1.2 + 0.4) * w**-0.8 + 0.5
    path = write({"kernel": k, "filters": f, "workers": w, "time_s": times})
    wish = Wish(intrinsic=("1", "kernel*filters"), extrinsic=("workers",))
    found = fitted(path, wish).model.original
    assert found["exponent:kernel"].value == pytest.approx(2.0, abs=1e-3)
    assert found["exponent:filters"].value == pytest.approx(1.2, abs=1e-3)
    assert found["coefficient:kernel*filters"].value == pytest.approx(0.01, rel=0.01)
    assert found["base:base"].value == pytest.approx(0.4, abs=1e-3)


def test_levels_multiply_in_a_product(write) -> None:
    rng = np.random.default_rng(4)
    k, w = (rng.choice(v, 150).astype(float) for v in ([1, 3, 5, 7], [1, 2, 4]))
    kind = rng.choice(["max", "max", "avg"], 150)
    times = (0.2 * k**1.5 * np.where(kind == "avg", 3.0, 1.0) + 0.4) * w**-0.8 + 0.5
    path = write({"kernel": k, "pool": list(kind), "workers": w, "time_s": times})
    wish = Wish(intrinsic=("1", "kernel*pool"), extrinsic=("workers",))
    fit = fitted(path, wish)
    found = fit.model.original
    assert found["multiplier:pool=avg"].value == pytest.approx(3.0, rel=1e-3)
    assert found["exponent:kernel"].value == pytest.approx(1.5, abs=1e-3)
    assert found["coefficient:kernel*pool"].value == pytest.approx(0.2, rel=1e-3)
    assert fit.model.form.text() == "(a + a·kernel^p·m[pool]) · workers^q + C"


def test_communication_gives_the_time_a_minimum(write) -> None:
    rng = np.random.default_rng(2)
    k, w = (rng.choice(v, 120).astype(float) for v in ([1, 3, 5, 7], [1, 2, 4, 8, 16]))
    times = k**1.5 * w**-1.0 + 0.2 + 0.05 * w
    path = write({"kernel": k, "workers": w, "time_s": times})
    found = fitted(path, form=FormWish(extended=True)).model
    assert found.original["growth:workers (communication)"].value == pytest.approx(1.0, abs=0.01)
    from traincast.fit.reading import best_count

    # d/dw (8/w + 0.05 w) = 0 at w = √160 for kernel 4
    assert best_count(found, "workers", {"kernel": 4})[0] == pytest.approx(np.sqrt(160), abs=1)


def test_roles_are_guessed_from_names(write) -> None:
    columns = reference_runs() | {"loss": np.ones(192), "step_ms": np.ones(192)}
    runs = runs_of(write(columns), time="epoch_s")
    roles = {f.name: f.role for f in runs.factors}
    assert roles == {"kernel": "intrinsic", "filters": "intrinsic", "workers": "extrinsic",
                     "batch": "extrinsic"}  # fmt: skip
    assert runs.left_out["step_ms"] == "is another time"
    with pytest.raises(
        InvalidValueError, match=r"several columns may be the time.*epoch_s, step_ms"
    ):
        runs_of(write(columns))


def test_contradictions_are_refused(write) -> None:
    path = write(reference_runs())
    with pytest.raises(InvalidValueError, match="batch: give a factor as intrinsic or"):
        runs_of(path, intrinsic=("batch",), extrinsic=("batch",))
    with pytest.raises(InvalidValueError, match="epoch_s is the time"):
        runs_of(path, intrinsic=("epoch_s",))


def test_broken_files_are_refused(tmp_path) -> None:
    cases = {
        "empty": b"", "binary": b"\x00\xff\xfe" * 50, "header": b"a,b,time_s\n",
        "ragged": b"a,time_s\n1,2\n1,2,3\n", "one_line": b"a" * (1 << 21),
    }  # fmt: skip
    for name, content in cases.items():
        path = tmp_path / f"{name}.csv"
        path.write_bytes(content)
        with pytest.raises(InputFileError, match=name):
            runs_of(path)
    with pytest.raises(InputFileError, match="no such file"):
        runs_of(tmp_path / "absent.csv")
    with pytest.raises(InputFileError, match="is a folder"):
        runs_of(tmp_path)


def test_of_a_long_table_an_even_sample_is_kept(tmp_path) -> None:
    path = tmp_path / "long.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("i,time_s\n")
        file.writelines(f"{i},{1 + i % 7}\n" for i in range(30_000))
    table = read_table(path, most=500)
    assert table.total == 30_000
    assert len(table.rows) == 500
    assert table.rows == sorted(table.rows)
    assert 14_000 < np.mean([float(v) for v in table.columns["i"]]) < 16_000
    assert read_table(path, most=500).rows == table.rows


def test_memory_is_bounded_whatever_the_size_of_the_file(tmp_path) -> None:
    import tracemalloc

    peaks = []
    for count in (20_000, 200_000):
        path = tmp_path / f"{count}.csv"
        with path.open("w") as file:
            file.write("a,b,time_s\n")
            file.writelines(f"{i % 5},{i % 3},1.5\n" for i in range(count))
        tracemalloc.start()
        read_table(path, most=1000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_row_numbers_are_few_in_a_message() -> None:
    assert say_rows([7]) == "row 7"
    assert say_rows(range(2, 14)) == "rows 2, 3, 4, 5, 6, 7, 8, 9 and 4 more"


def test_every_refusal_is_ours(tmp_path) -> None:
    """Random damage to a table never ends in an error of Python's own."""
    rng = np.random.default_rng(5)
    path = write_table(tmp_path / "runs.csv", {n: v[:20] for n, v in reference_runs(0.03).items()})
    text = path.read_text()
    for _ in range(150):
        broken = list(text)
        for _ in range(rng.integers(1, 6)):
            at = int(rng.integers(len(broken)))
            broken[at] = str(rng.choice(list(',\n"-x0.e9 \t;')))
        path.write_text("".join(broken))
        with contextlib.suppress(TraincastError):
            runs_of(path)
