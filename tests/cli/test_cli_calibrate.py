"""traincast calibrate: a profile of this machine's device, or of results measured elsewhere."""

from __future__ import annotations

import ast
import gzip
import json
import sqlite3
from pathlib import Path

import pytest

from traincast.estimate.calibrated.profile import read_profile

H200 = Path(__file__).parents[2] / "benchmarks" / "data" / "h200" / "kernels.jsonl.gz"
HEADER = json.dumps({
    "header": {"schema": 1, "kind": "cuda", "device": "NVIDIA H200", "torch": "2.11"}
})  # fmt: skip
ROW = json.dumps({
    "family": "gemm", "m": 64, "n": 64, "k": 64, "batch": 1, "form": "forward", "dtype": "bf16",
    "seconds": 2e-6, "spread": 0.1,
})  # fmt: skip


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCAST_STORE", str(tmp_path / "data" / "store.db"))
    monkeypatch.setenv("TRAINCAST_PROFILES", str(tmp_path / "data" / "profiles"))


def test_the_script_is_printed(cli) -> None:
    found = cli("calibrate", "--emit-script")
    assert (found.status, found.err) == (0, "")
    tree = ast.parse(found.out)
    assert (ast.get_docstring(tree) or "").startswith("Times single kernels")
    assert not any("traincast" in ast.unparse(node) for node in tree.body)


def test_a_profile_from_measured_results(cli, tmp_path: Path) -> None:
    if not H200.exists():
        pytest.skip("the repository's measured data are not here")
    head, *rows = gzip.decompress(H200.read_bytes()).decode().splitlines()
    some = tmp_path / "some.jsonl"
    some.write_text("\n".join([head, *rows[::40]]) + "\n")
    found = cli("calibrate", "--from", some, "--json")
    assert found.status == 0, found.err
    path = tmp_path / "data" / "profiles" / "h200.json"
    assert found.data["profile"] == str(path)
    told = [json.loads(row) for row in rows[::40]]
    errors = sum("error" in row for row in told)
    assert found.data["device"] == "h200"
    assert (found.data["rows"], found.data["errors"]) == (len(told), errors)
    assert found.data["families"]["conv"] == sum('"conv"' in r for r in rows[::40])
    assert found.data["device_file"] is None
    assert read_profile(path).device == "h200"


def test_rows_by_family_are_shown(cli, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    failed = json.dumps({"family": "conv", "n": 1, "dtype": "bf16", "error": "out of memory"})
    out.write_text("\n".join([HEADER, *[ROW] * 8, failed]) + "\n")
    found = cli("calibrate", "--from", out, "-o", tmp_path / "p.json")
    assert found.status == 0, found.err
    cells = {line.split()[0]: line.split()[1:] for line in found.out.splitlines() if line.strip()}
    assert cells["gemm"][:2] == ["8", "0"]
    assert cells["conv"][:2] == ["1", "1"]
    assert f"Wrote {tmp_path / 'p.json'}" in found.out.replace("\n", "")


def test_half_a_last_line_is_what_a_kill_leaves(cli, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl.gz"
    out.write_bytes(gzip.compress("\n".join([HEADER, *[ROW] * 8, ROW[:30]]).encode()))
    found = cli("calibrate", "--from", out, "--json", "-o", tmp_path / "p.json")
    assert found.data["rows"] == 8


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["is empty", "--emit-script"]),
        ("\n\n", ["is empty"]),
        (f"{HEADER}\n", ["no measured row"]),
        (f"{HEADER}\n{ROW}\n{{broken\n{ROW}\n", ["line 3", "not JSON"]),
        (f"{HEADER}\n{ROW}\n[1, 2]\n", ["line 3", "no JSON object"]),
        (f'{HEADER}\n{ROW}\n{{"m": 3}}\n', ["line 3", "no family"]),
        (f'{HEADER}\n{{"family": "gemm", "seconds": "1"}}\n', ["line 2", "'1'"]),
        (f'{HEADER}\n{{"family": "gemm", "seconds": -1}}\n', ["line 2", "-1"]),
        (f'{HEADER}\n{{"family": "gemm", "seconds": NaN}}\n', ["line 2", "nan"]),
        (f"{ROW}\n", ["line 1", "no header"]),
        (HEADER.replace('"schema": 1', '"schema": 7') + f"\n{ROW}\n", ["schema 7", "reads 1"]),
        ("\x00\x01\n", ["line 1"]),
    ],
)
def test_bad_results_are_refused(cli, tmp_path: Path, text: str, parts: list[str]) -> None:
    out = tmp_path / "results.jsonl"
    out.write_text(text)
    cli("calibrate", "--from", out).refused("results.jsonl", *parts)
    assert not (tmp_path / "data" / "profiles").exists()


def test_results_of_two_devices_are_refused(cli, tmp_path: Path) -> None:
    one, two, three = (tmp_path / f"{name}.jsonl" for name in "abc")
    one.write_text(f"{HEADER}\n{ROW}\n")
    two.write_text(HEADER.replace("H200", "H100") + f"\n{ROW}\n")
    three.write_text(HEADER.replace("2.11", "2.12") + f"\n{ROW}\n")
    cli("calibrate", "--from", one, "--from", two).refused("b.jsonl", "NVIDIA H100", "one device")
    cli("calibrate", "--from", one, "--from", three).refused("c.jsonl", "torch 2.12")


def test_other_bad_input(cli, tmp_path: Path) -> None:
    cli("calibrate", "--from", tmp_path / "nosuch.jsonl").refused("nosuch.jsonl", "no such file")
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(gzip.compress(b"x" * 1000)[:20])
    cli("calibrate", "--from", damaged).refused("damaged gzip")
    cli("calibrate", "--name", "nosuch").refused("nosuch", "traincast devices")
    cli("calibrate", "--minutes", "0").refused("--minutes", "above 0")
    cli("calibrate", "mnist-small").refused("networks", "--many-core")
    cli("calibrate", "--many-core", "--minutes", "3").refused("--minutes", "--many-core")
    cli("calibrate", "--from", damaged, "--device", "cpu").refused("--device", "--from")
    cli("calibrate", "--from-runs", "runs.csv").refused("--profile FILE")
    cli("calibrate", "--profile", "p.json").refused("--profile", "--from-runs")
    cli("calibrate", "-o", tmp_path / "no" / "p.json").refused("no folder")


def test_a_locked_store(cli, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "data").mkdir()
    holder = sqlite3.connect(tmp_path / "data" / "store.db")
    holder.execute("BEGIN EXCLUSIVE")
    cli("calibrate", "--device", "cpu").refused("store.db", "locked", "TRAINCAST_STORE")
    holder.close()


def test_this_machine_is_measured_for_some_seconds(cli, tmp_path: Path) -> None:
    """A loaded machine may need more than one go, which is the point of the store."""
    pytest.importorskip("torch")
    for _ in range(20):
        found = cli("calibrate", "--device", "cpu", "--minutes", "0.1", "--json")
        if found.status == 0:
            break
        assert "was measured" in found.err  # too little, or nothing
    assert found.data["new_rows"] <= found.data["rows"]
    rows = found.data["rows"]
    assert found.data["header"]["kind"] == "cpu"
    path = Path(found.data["profile"])
    assert path.parent == tmp_path / "data" / "profiles"
    assert read_profile(path).device == found.data["device"]
    if found.data["device_file"]:  # no CPU of the catalog
        shown = cli("devices", "show", found.data["device_file"])
        assert shown.status == 0, shown.err
    more = cli("calibrate", "--device", "cpu", "--minutes", "0.05", "--json")
    assert more.data["rows"] == rows + more.data["new_rows"]
