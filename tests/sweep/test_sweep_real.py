"""Real training in each framework that is at hand, in one process and in two."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import asdict

import pytest
from sweep_helpers import make_environment, parameters_by_hand

from traincast.errors import UsageError
from traincast.measure.sweep.environment import python_of
from traincast.measure.sweep.plan import Effort, Run
from traincast.measure.sweep.runner import WORKERS, train
from traincast.measure.sweep.settings import Settings

SMALL = Settings(
    dataset="cifar", kernel=5, filters=3, layers=2, pool="avg", activation="tanh",
    optimizer="momentum", dropout=0.25, stride=2, padding="valid", batch=8, samples=32,
)  # fmt: skip
EFFORT = Effort(warmup_steps=1, timed_s=0.01, least_epochs=2, most_s=5.0)


@pytest.fixture
def python(framework, tmp_path, monkeypatch):
    if framework == "pytorch" and importlib.util.find_spec("torch"):
        monkeypatch.setenv("TRAINCAST_FRAMEWORKS", str(tmp_path))
        make_environment(tmp_path, framework, sys.executable, '"$@"')
    try:
        return python_of(framework)
    except UsageError:
        pytest.skip(f"no environment of {framework}; `scripts/frameworks {framework}` makes one")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "mxnet"])
def test_a_real_run(framework, workers, python):
    settings = Settings(**(asdict(SMALL) | {"workers": workers}))
    command = [str(python), "-W", "ignore", str(WORKERS / f"on_{framework}.py")]
    found = train(command, Run(framework=framework, settings=settings), EFFORT, limit=120)
    assert found["status"] == "ok", found
    assert found["epochs"] >= 2
    assert found["steps"] == 4
    assert found["parameters"] == parameters_by_hand(asdict(settings))
    assert found["version"][0].isdigit()
