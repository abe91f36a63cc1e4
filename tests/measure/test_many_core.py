"""Measuring for the many-core models: what is asked of the workers and made of their answers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from traincast.errors import InvalidValueError, PredictionError
from traincast.estimate.viebke import Parameters, Run, forecast
from traincast.measure import many_core
from traincast.measure.cpu import Cpu
from traincast.measure.crew import Count
from traincast.measure.many_core import (
    Effort,
    measure_networks,
    per_image,
    run_for_real,
    undisturbed,
)
from traincast.measure.training import Trainee, loss_of, source_of

CPU = Cpu(name="made up", clock_hz=2e9, cores=((0, 2), (1, 3)), pinned=True)
FORWARD, TRAIN = 1e-3, 3e-3


class PretendCrew:
    """Workers that take 1 ms forward and 3 ms to train; 60 % longer two to a core, plus 10 µs."""

    def __init__(self, cpus: list[int]) -> None:
        self.cpus = list(cpus)

    def __enter__(self) -> PretendCrew:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def hello(self) -> float:
        return 2.0

    def load(self, reference: str, batch: int) -> float:
        if reference == "mnist-large":
            raise PredictionError("the network cannot be trained here")
        return 0.5

    def seconds(self, phase: str, workers: range | list[int]) -> float:
        cores = [self.cpus[i] % 2 for i in workers]
        shared = max(cores.count(core) for core in set(cores))
        waits = 0.0 if len(cores) == 1 or len(set(cores)) == 1 else 1e-5 * len(cores)
        return {"evaluate": FORWARD, "train": TRAIN}[phase] * {1: 1.0, 2: 1.6}[shared] + waits

    def window(self, phase: str, workers: range | list[int], seconds: float) -> list[Count]:
        each = self.seconds(phase, workers)
        return [Count(100, 100 * each, 100 * each) for _ in workers]

    def share(self, phase: str, workers: range, images: int, chunk: int) -> list[Count]:
        each = self.seconds(phase, workers) * images / len(workers)
        return [Count(images // len(workers), each, each) for _ in workers]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_core, "Crew", PretendCrew)
    monkeypatch.setattr(many_core, "this_cpu", lambda: CPU)


def test_what_the_workers_do_becomes_parameters(pretend: None) -> None:
    found = measure_networks(["mnist-small"])
    network = found.networks["mnist-small"]
    assert found.machine.cpi == pytest.approx((1.0, 1.6))
    assert (found.machine.name, found.machine.cores) == ("made up", 2)
    times = (network.times.prepare, network.times.forward, network.times.backward)
    assert times == pytest.approx((2.5, FORWARD, TRAIN - FORWARD))
    waits = dict(network.contention.rows)
    # Training and validating an image wait 10 µs a worker each; sharing a core is CPI's business.
    assert waits == pytest.approx({1: 0.0, 2: 4e-5, 4: 8e-5})
    assert network.work.forward_calls == 13
    assert set(found.software) == {"torch", "python", "traincast"}


def test_the_model_then_predicts_the_run_that_it_was_measured_on(pretend: None) -> None:
    found = measure_networks(["mnist-small"])
    run = Run(images=1200, test_images=0, epochs=2)
    for threads in (1, 2, 4):
        real = run_for_real("mnist-small", run, threads)
        row = forecast("mnist-small", model="b", threads=[threads], parameters=found, run=run).rows[
            0
        ]
        assert row.seconds.total - row.seconds.sequential == pytest.approx(real.parallel)


def test_each_network_is_handed_on_as_soon_as_it_is_measured(pretend: None) -> None:
    kept: list[Parameters] = []
    with pytest.raises(PredictionError, match="cannot be trained"):
        measure_networks(["mnist-small", "mnist-large"], done=kept.append)
    assert [list(p.networks) for p in kept] == [["mnist-small"]]
    more = measure_networks(["mnist-medium"], known=kept[0])
    assert list(more.networks) == ["mnist-small", "mnist-medium"]


def test_thread_counts_are_those_that_the_machine_has(pretend: None) -> None:
    found = measure_networks(["mnist-small"], threads=[2])
    assert [p for p, _ in found.networks["mnist-small"].contention.rows] == [1, 2]
    with pytest.raises(InvalidValueError, match="8 cannot be measured here: this process has 4"):
        measure_networks(["mnist-small"], threads=[8])
    with pytest.raises(InvalidValueError, match="cannot be measured"):
        measure_networks(["mnist-small"], threads=[0])
    with pytest.raises(PredictionError, match="no network is named"):
        measure_networks([])


def test_images_are_shared_out_to_whoever_is_free() -> None:
    # 100 images in 1 s and 50 in 1 s: 150 in 1 s between two workers.
    assert per_image([Count(100, 1.0, 1.0), Count(50, 1.0, 1.0)]) == pytest.approx(2 / 150)


def test_the_windows_that_were_interrupted_least_count() -> None:
    quiet = [[Count(100, 1.0 + i / 100, 1.0 + i / 100)] for i in range(3)]
    busy = [[Count(100, 5.0, 9.0)], [Count(100, 5.0, 20.0)], [Count(100, 6.0, 30.0)]]
    assert sorted(undisturbed([*busy, *quiet])) == pytest.approx([0.01, 0.0101, 0.0102])


def test_a_window_is_bounded() -> None:
    assert Effort(40.0, 7).window(1000) == 0.1
    assert Effort(40.0, 7).window(4) == pytest.approx(40 / 28)


def test_workers_write_to_one_set_of_weights() -> None:
    source = source_of("mnist-small")
    first, second = Trainee(source, 2, seed=0), Trainee(source, 2, seed=1)
    second.adopt(first.weights())
    before = [p.detach().clone() for p in first.module.parameters()]
    second.train()
    after = list(first.module.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    still = [p.detach().clone() for p in after]
    second.evaluate()
    assert all(torch.equal(a, b) for a, b in zip(still, after, strict=True))


def test_any_module_can_be_measured(tmp_path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n\ndef build():\n    return torch.nn.Linear(3, 2), torch.zeros(1, 3)\n"
    )
    Trainee(source_of(f"{file}:build"), 4, seed=0).train()
    graph = tmp_path / "graph.json"
    graph.write_text("{}")
    with pytest.raises(Exception, match="graph"):
        source_of(str(graph))


def test_losses() -> None:
    scalar = torch.tensor(2.0)
    assert loss_of(scalar) is scalar
    assert loss_of({"loss": scalar}) is scalar
    assert loss_of((torch.zeros(2, 5), None)).item() == pytest.approx(1.609, abs=1e-3)  # ln 5
    assert loss_of(torch.zeros(2, 3, 4)).item() == pytest.approx(1.386, abs=1e-3)  # ln 4
    assert loss_of(torch.zeros(3, 1)).item() == pytest.approx(0.693, abs=1e-3)  # ln 2


@pytest.mark.slow
def test_real_workers(tmp_path) -> None:
    found = measure_networks(["mnist-small"], threads=[1], effort=Effort(0.2, 1))
    times = found.networks["mnist-small"].times
    assert min(times.prepare, times.forward, times.backward) > 0
    real = run_for_real("mnist-small", Run(images=20, test_images=4, epochs=1), 1)
    assert real.training > 0
    assert real.test > 0
    file = tmp_path / "net.py"
    file.write_text(
        "import torch\n\nclass Net(torch.nn.Linear):\n    def forward(self, x):\n"
        "        raise ValueError('not today')\n\ndef build():\n"
        "    return Net(3, 2), torch.zeros(1, 3)\n"
    )
    with pytest.raises(PredictionError, match="cannot be trained here: ValueError: not today"):
        run_for_real(f"{file}:build", Run(images=1), 1)
