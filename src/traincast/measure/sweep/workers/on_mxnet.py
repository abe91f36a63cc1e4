"""Trains the network of a sweep in MXNet's Gluon; several processes by its store dist_sync.

That store needs two more processes: a scheduler, by which the others find each other, and a server,
which adds the gradients up and updates the weights.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traincast.measure.sweep.workers.harness import CLASSES, Job
else:
    from harness import CLASSES, Job


def network(s: dict[str, Any], nn: Any) -> Any:
    """Build the network: blocks of convolution, activation, pooling and dropout; one dense."""
    padding = s["kernel"] // 2 if s["padding"] == "same" else 0
    model = nn.HybridSequential()
    for place in range(s["layers"]):
        stride = s["stride"] if place == 0 else 1
        model.add(nn.Conv2D(s["filters"], s["kernel"], stride, padding))
        model.add(nn.Activation(s["activation"]))
        if s["pool"] != "none":
            model.add({"max": nn.MaxPool2D, "avg": nn.AvgPool2D}[s["pool"]](2))
        if s["dropout"]:
            model.add(nn.Dropout(s["dropout"]))
    model.add(nn.Flatten(), nn.Dense(CLASSES))
    return model


def optimizer(name: str) -> tuple[str, dict[str, float]]:
    """Return MXNet's name of the optimizer, and its settings."""
    if name in {"adam", "rmsprop"}:
        return name, {"learning_rate": 1e-3}
    return "sgd", {"learning_rate": 1e-2, "momentum": 0.9 if name == "momentum" else 0.0}


def find_each_other(job: Job) -> None:
    """Set what MXNet's key-value store reads; the first process starts its two helpers."""
    shared = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(job.order["ports"][0]),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(job.workers),
        "DMLC_INTERFACE": "lo",
        "DMLC_NODE_HOST": "127.0.0.1",
    }
    if job.rank == 0:
        for role in ("scheduler", "server"):
            job.help_by("import mxnet", shared | {"DMLC_ROLE": role})
    os.environ.update(shared | {"DMLC_ROLE": "worker"})


def main() -> None:
    """Train as standard input says."""
    job = Job()
    if job.workers > 1:
        find_each_other(job)
    mx = importlib.import_module("mxnet")
    s = job.settings
    mx.random.seed(0)
    model = network(s, mx.gluon.nn)
    model.initialize(mx.init.Xavier())
    model.hybridize(static_alloc=True)
    images, labels = job.data()
    batches = mx.io.NDArrayIter(
        images, labels, job.local_batch, shuffle=True, last_batch_handle="discard"
    )
    model(mx.nd.array(images[:1])).wait_to_read()  # the sizes of the weights follow from an input
    parameters = sum(p.data().size for p in model.collect_params().values())
    store = mx.kv.create("dist_sync") if job.workers > 1 else "device"
    trainer = mx.gluon.Trainer(model.collect_params(), *optimizer(s["optimizer"]), kvstore=store)
    cost = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    cost.hybridize()

    def epoch(most: int) -> None:
        batches.reset()
        for step, batch in enumerate(batches, 1):
            with mx.autograd.record():
                loss = cost(model(batch.data[0]), batch.label[0])
            loss.backward()
            trainer.step(s["batch"])
            if step == most:
                break
        mx.nd.waitall()

    epoch(job.order["warmup_steps"])
    while job.more():
        epoch(0)
    job.finish(parameters, mx.__version__)


if __name__ == "__main__":
    main()
