"""Whatever is typed wrong: exit status 2, one message with the fix, nothing on standard output."""

from __future__ import annotations

import shlex

import pytest

from traincast import __version__

WRONG = {
    "predict": ["MODEL is missing", "traincast predict --help"],
    "predict nosuch": ["unknown model 'nosuch'", "traincast models", "FILE.py:FUNCTION"],
    "predict resnet5": ["did you mean resnet50"],
    "predict weights.pt": ["weights", "FILE.py:FUNCTION"],
    "predict ''": ["names no model"],
    "predict foo:": ["unknown model reference 'foo:'"],
    "predict :foo": ["unknown model reference ':foo'"],
    "predict torchvision:": ["torchvision:NAME"],
    "predict hf:": ["hf:CONFIG.json"],
    "predict 'resnet50?depth'": ["'depth'", "name?key=value"],
    "predict resnet50 -d h2000": ["unknown device 'h2000'", "did you mean h200"],
    "predict resnet50 -d nosuch.toml": ["nosuch.toml", "no such file"],
    "predict resnet50 -p fp31": ["unknown precision 'fp31'", "did you mean fp32"],
    "predict resnet50 --optimizer adam2": ["unknown optimizer 'adam2'", "adamw"],
    "predict resnet50 --layout nchv": ["'nchv'", "nchw or nhwc"],
    "predict resnet50 --estimator roofl": ["unknown estimator 'roofl'", "roofline"],
    "predict resnet50 --by foo": ["--by", "layer"],
    "predict resnet50 --top x": ["--top 'x'", "all"],
    "predict resnet50 --top -1": ["--top '-1'"],
    "predict resnet50 --top 1.5": ["--top '1.5'"],
    "predict resnet50 --top": ["--top needs a value"],
    "predict resnet50 --devise h100": ["unknown option --devise", "did you mean --device?"],
    "predict resnet50 -z": ["unknown option -z"],
    "predict resnet50 extra": ["unexpected argument 'extra'"],
    "predict resnet50 -b 1 -b 2": ["-b is given more than once"],
    "predict resnet50 --json=maybe": ["--json"],
    "predict resnet50 --seq 12": ["resnet50 has no sequence", "leave out --seq"],
    "predict resnet50 --inference --recompute": ["--recompute is for training"],
    "predict resnet50 --inference --accumulate 2": ["--accumulate is for training"],
    "predict resnet50 --epochs 3": ["--epochs needs --dataset-size"],
    "predict resnet50 --price-per-hour 3": ["--price-per-hour needs --dataset-size"],
    "predict resnet50 --tokens 3B": ["resnet50 has no tokens", "--dataset-size"],
    "predict gpt2 --tokens 3B --epochs 2": ["either --tokens, or --dataset-size"],
    "predict resnet50 --dataset-size 9 --epochs inf": ["--epochs 'inf'"],
    "predict resnet50 --dataset-size 9 --epochs -1": ["--epochs '-1'"],
    "predict resnet50 --dataset-size 9 --price-per-hour nan": ["--price-per-hour 'nan'"],
    "predict resnet50 --trace /nosuch/x.json": ["/nosuch/x.json", "no folder /nosuch"],
    "predict alex_v2 --image 10": ["alex_v2", "leave out the image size"],
    "predic resnet50": ["unknown command 'predic'", "did you mean predict?"],
    "nosuch": ["unknown command 'nosuch'", "there are predict, ", "models", "devices"],
    "--nosuch": ["unknown option --nosuch", "traincast --help"],
    "models nosuch": ["models has no command 'nosuch'", "show and export"],
    "models show": ["REFERENCE is missing", "traincast models show --help"],
    "models show nosuch": ["unknown model 'nosuch'"],
    "models show resnet50 --seq 8": ["leave out --seq"],
    "models show resnet50 --image abc": ["--image 'abc'"],
    "models export": ["REFERENCE is missing"],
    "models export nosuch": ["unknown model 'nosuch'"],
    "models export resnet18 -o /nosuch/x.json": ["no folder /nosuch"],
    "devices nosuch": ["devices has no command 'nosuch'", "show"],
    "devices show": ["NAME is missing"],
    "devices show h1000": ["unknown device or link 'h1000'", "did you mean h100"],
    "devices show nvlnk4": ["unknown device or link 'nvlnk4'", "did you mean nvlink4"],
    "devices show h100 --network nvlink4": ["h100 is no cluster", "leave out --network"],
    "devices show 0xh100": ["count of 0"],
    "devices show 9xh100": ["9 devices", "3x3xh100"],
    "devices show 4x8xnosuch": ["unknown device 'nosuch'"],
    "devices show 2x8xh100 --network foo": ["unknown link 'foo'"],
}

OPTIONS = """--device --batch --seq --image --precision --optimizer --accumulate --recompute
--layout --compile --inference --estimator --dataset-size --epochs --tokens --price-per-hour
--by --top --trace --json"""


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_is_refused_with_the_fix(cli, line: str) -> None:
    cli(*shlex.split(line)).refused(*WRONG[line])


@pytest.mark.parametrize("value", ["0", "-3", "1.5", "abc", "", "²", "--5", "1e-3"])
@pytest.mark.parametrize("option", ["--batch", "--seq", "--image", "--accumulate"])
def test_sizes_are_whole_numbers_of_at_least_one(cli, option: str, value: str) -> None:
    cli("predict", "gpt2", f"{option}={value}").refused(option, repr(value), "at least 1; write")


@pytest.mark.parametrize("value", [str(10**30), "1e30", "1e9T"])
@pytest.mark.parametrize("option", ["--batch", "--seq", "--image", "--accumulate"])
def test_sizes_beyond_sense_are_refused_and_the_most_is_named(cli, option, value) -> None:
    cli("predict", "gpt2", option, value).refused(option, value, "too large; give at most 1")


def test_with_json_an_error_is_still_text_on_standard_error(cli) -> None:
    cli("predict", "nosuch", "--json").refused("unknown model 'nosuch'")


def test_a_model_that_fits_at_no_batch_is_no_bad_usage(cli) -> None:
    found = cli("predict", "llama-3.1-405b", "--batch", "max")
    found.refused("llama-3.1-405b", "h200", "even at batch 1", "more devices", status=1)


def test_a_batch_that_does_not_fit_is_predicted_and_said(cli) -> None:
    found = cli("predict", "resnet50", "-d", "k20", "-b", "512")
    assert found.status == 0
    assert "DOES NOT FIT" in found.out


@pytest.mark.parametrize("command", ["", "predict", "models", "models show", "models export"])
def test_help_names_the_command_and_its_options(cli, command: str) -> None:
    found = cli(*command.split(), "--help")
    assert found.status == 0
    assert found.err == ""
    assert found.out.startswith(f"Usage: traincast {command}".rstrip())
    assert cli(*command.split(), "-h").out == found.out
    assert "[default: False]" not in found.out


def test_help_of_predict_lists_every_option(cli) -> None:
    text = cli("predict", "--help").out
    for option in OPTIONS.split():
        assert option in text


def test_help_of_devices(cli) -> None:
    assert "--links" in cli("devices", "--help").out
    assert "--network" in cli("devices", "show", "--help").out


def test_version(cli) -> None:
    assert cli("--version").out.strip() == __version__


def test_no_command_shows_the_help(cli) -> None:
    assert cli().out == cli("--help").out


def test_a_defect_of_ours_is_reported_without_a_traceback(cli, monkeypatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("traincast.cli.predict.load_model", broken)
    monkeypatch.delenv("TRAINCAST_DEBUG", raising=False)
    found = cli("predict", "resnet50")
    assert (found.status, found.out) == (1, "")
    assert "RuntimeError: boom" in found.err
    assert "defect of traincast" in found.err
    monkeypatch.setenv("TRAINCAST_DEBUG", "1")
    with pytest.raises(RuntimeError, match="boom"):
        cli("predict", "resnet50")
