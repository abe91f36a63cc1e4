"""traincast predict, on networks that need no framework."""

from __future__ import annotations

import json

import pytest

RESNET50_PARAMETERS = 25_557_032  # torchvision's documentation of resnet50
RESNET50_FORWARD_FLOPS = 8_178_368_512  # 4,089,184,256 multiply-adds, as fvcore counts them
KEYS = [
    "model",
    "device",
    "parameters",
    "forward_flops",
    "step_ms",
    "interval_ms",
    "forward_ms",
    "backward_ms",
    "optimizer_ms",
    "samples_per_s",
    "peak_bytes",
    "fits",
    "bound_by",
    "estimator",
    "basis",
    "unpriced_ops",
]


def test_json_has_the_keys_that_are_promised(cli) -> None:
    found = cli("predict", "resnet50", "--batch", "256", "--json")
    assert found.status == 0
    assert found.err == ""
    assert [key for key in KEYS if key not in found.data] == []
    assert found.data["parameters"] == RESNET50_PARAMETERS
    assert found.data["forward_flops"] == 256 * RESNET50_FORWARD_FLOPS
    low, high = found.data["interval_ms"]
    assert low < found.data["step_ms"] < high


def test_phases_add_up_to_the_step(cli) -> None:
    data = cli("predict", "gpt2", "-d", "rtx-4090", "-b", "2", "--json").data
    phases = data["forward_ms"] + data["backward_ms"] + data["optimizer_ms"]
    assert phases == pytest.approx(data["step_ms"])


@pytest.mark.parametrize("device", ["h200", "rtx-4090", "k20", "tpu-v4", "xeon-8380", "mi300x"])
@pytest.mark.parametrize("model", ["resnet18", "bert-base", "dlrm", "lstm-ptb", "unet"])
def test_any_model_on_any_kind_of_device(cli, model: str, device: str) -> None:
    found = cli("predict", model, "-d", device, "-b", "4", "--json")
    assert found.status == 0
    assert found.data["step_ms"] > 0
    assert cli("predict", model, "-d", device, "-b", "4").status == 0


def test_inference_is_the_forward_pass_alone(cli) -> None:
    data = cli("predict", "resnet50", "--inference", "--json").data
    assert data["backward_ms"] == data["optimizer_ms"] == 0
    assert data["memory_bytes"]["optimizer"] == data["memory_bytes"]["gradients"] == 0
    assert "inference" in cli("predict", "resnet50", "--inference").out


def test_accumulation_multiplies_the_work_and_not_the_updates(cli) -> None:
    one, four = (
        cli("predict", "gpt2", "--accumulate", n, "--compile", "--json").data for n in (1, 4)
    )
    assert four["forward_flops"] == 4 * one["forward_flops"]
    assert four["optimizer_ms"] == pytest.approx(one["optimizer_ms"])


def test_recomputation_takes_longer_in_less_memory(cli) -> None:
    plain = cli("predict", "gpt2", "--json").data
    again = cli("predict", "gpt2", "--recompute", "--json").data
    assert again["peak_bytes"] < plain["peak_bytes"]
    assert again["backward_ms"] > plain["backward_ms"]


def test_the_largest_batch_fits_and_one_more_does_not(cli) -> None:
    best = cli("predict", "resnet50", "-d", "k20", "-b", "MAX", "--json").data
    assert best["fits"] is True
    more = cli("predict", "resnet50", "-d", "k20", "-b", best["batch"] + 1, "--json").data
    assert more["fits"] is False


def test_a_whole_run_and_its_cost(cli) -> None:
    run = ["--dataset-size", "1281167", "--epochs", "90", "--price-per-hour", "2.5"]
    data = cli("predict", "resnet50", "-b", "256", *run, "--json").data
    # ImageNet in batches of 256 is 5005 steps an epoch, the last of them not full.
    assert data["totals"]["steps"] == 5005 * 90
    hours = 5005 * 90 * data["step_ms"] / 3.6e6
    assert data["totals"]["hours"] == pytest.approx(hours)
    assert data["totals"]["cost"] == pytest.approx(2.5 * hours)
    assert "Whole run" in cli("predict", "resnet50", "-b", "256", *run).out


def test_tokens_of_a_whole_run(cli) -> None:
    data = cli("predict", "gpt2", "-b", "8", "--seq", "1024", "--tokens", "300B", "--json").data
    assert data["totals"]["steps"] == pytest.approx(300e9 / (8 * 1024))


@pytest.mark.parametrize("by", ["layer", "type", "op"])
def test_rows_are_limited_by_top(cli, by: str) -> None:
    def rows(top: object) -> list[dict[str, object]]:
        data = cli("predict", "resnet18", "--by", by, "--top", top, "--json").data["by"]
        assert data["group"] == by
        return data["rows"]

    assert rows(0) == []
    assert len(rows(3)) == 3
    assert rows("all") == rows(10**12)
    assert rows("all")[:3] == rows(3)


def test_no_rows_leave_no_table(cli) -> None:
    assert "share" not in cli("predict", "resnet18", "--top", "0").out
    assert "more" not in cli("predict", "resnet18", "--top", "all").out


def test_the_setting_is_shown(cli) -> None:
    line = """predict gpt2 -d a100-80gb -b 4 --seq 512 -p bf16 --optimizer lion --accumulate 2
    --recompute --compile --layout nhwc"""
    text = cli(*line.split()).out
    for part in ("batch 4", "seq 512", "bf16", "lion", "2 passes a step", "recomputation"):
        assert part in text
    assert "compiled" in text
    assert "nhwc" in text


def test_names_take_hyphens_underscores_and_any_case(cli) -> None:
    one = cli("predict", "ResNet50", "-d", "NVIDIA H200", "-p", "AMP-BF16", "--json")
    assert one.out == cli("predict", "resnet50", "--json").out


def test_a_users_device_file_over_a_base(cli, tmp_path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "h200"\nmemory_bandwidth = "9.6 TB/s"\n')
    ours, theirs = (
        cli("predict", "gpt2", "-d", d, "-b", "64", "--json").data for d in (file, "h200")
    )
    assert ours["device"] == "mine"
    assert ours["optimizer_ms"] < theirs["optimizer_ms"]
    assert "9.60 TB/s" in cli("devices", "show", file).out


def test_all_errors_of_a_device_file_at_once(cli, tmp_path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('title = "x"\nmemory = "80 GB/s"\nmemory_bandwidth = "-5 TB/s"\nclok = 3\n')
    cli("predict", "resnet50", "-d", file).refused(
        "bad.toml", "'80 GB/s'", "expected bytes", "'-5 TB/s'", "above zero", "'clok'", "clock"
    )


@pytest.mark.parametrize("content", [b"", b"a = = 3", b"\xff\x00"])
def test_malformed_device_files(cli, tmp_path, content: bytes) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    cli("predict", "resnet50", "-d", file).refused("bad.toml")


def test_a_trace_is_written_whole(cli, tmp_path) -> None:
    file = tmp_path / "step.json"
    found = cli("predict", "resnet18", "--trace", file)
    assert f"Wrote {file}" in found.out
    assert json.loads(file.read_text())["traceEvents"]
    assert list(tmp_path.iterdir()) == [file]
    assert cli("predict", "resnet18", "--trace", file, "--json").data["model"] == "resnet18"


def test_a_profile_of_ones_own(cli, tmp_path) -> None:
    from importlib import resources

    shipped = resources.files("traincast.hardware") / "profiles/v100.json"
    file = tmp_path / "mine.json"
    file.write_text(shipped.read_text())
    own, other = (cli("predict", "resnet50", "-d", "v100", *more, "--json").data
                  for more in ((), ("--profile", file)))  # fmt: skip
    assert other == own
    carried = cli("predict", "resnet50", "-d", "t4", "--profile", file, "--json").data
    assert carried["basis"] == "profile of v100, transferred by datasheet"
    assert carried["step_ms"] != cli("predict", "resnet50", "-d", "t4", "--json").data["step_ms"]


def test_a_profile_that_is_none(cli, tmp_path) -> None:
    file = tmp_path / "bad.json"
    cli("predict", "resnet50", "--profile", file).refused("bad.json", "cannot be read")
    file.write_text('{"schema": 1}')
    cli("predict", "resnet50", "--profile", file).refused("bad.json", "is not a profile")
    cli("predict", "resnet50", "--profile", file, "--estimator", "roofline").refused("no profile")
