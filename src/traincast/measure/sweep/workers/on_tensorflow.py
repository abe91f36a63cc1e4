"""Trains the network of a sweep in TensorFlow; several processes by MultiWorkerMirroredStrategy."""

from __future__ import annotations

import importlib
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traincast.measure.sweep.workers.harness import CLASSES, SHAPES, Job
else:
    from harness import CLASSES, SHAPES, Job


def network(s: dict[str, Any], keras: Any) -> Any:
    """Build the network: blocks of convolution, activation, pooling and dropout; one dense."""
    channels, *sides = SHAPES[s["dataset"]]
    nn = keras.layers
    layers = [keras.Input((*sides, channels))]
    for place in range(s["layers"]):
        stride = s["stride"] if place == 0 else 1
        layers += [
            nn.Conv2D(s["filters"], s["kernel"], stride, s["padding"]),
            nn.Activation(s["activation"]),
        ]
        if s["pool"] != "none":
            layers.append({"max": nn.MaxPooling2D, "avg": nn.AveragePooling2D}[s["pool"]](2))
        if s["dropout"]:
            layers.append(nn.Dropout(s["dropout"]))
    return keras.Sequential([*layers, nn.Flatten(), nn.Dense(CLASSES)])


def optimizer(name: str, keras: Any) -> Any:
    """Return the optimizer of that name."""
    if name == "adam":
        return keras.optimizers.Adam(1e-3)
    if name == "rmsprop":
        return keras.optimizers.RMSprop(1e-3)
    return keras.optimizers.SGD(1e-2, momentum=0.9 if name == "momentum" else 0.0)


def main() -> None:
    """Train as standard input says."""
    job = Job()
    s = job.settings
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if job.workers > 1:
        addresses = [f"127.0.0.1:{port}" for port in job.order["ports"]]
        task = {"type": "worker", "index": job.rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    tf = importlib.import_module("tensorflow")
    keras = tf.keras
    tf.config.threading.set_intra_op_parallelism_threads(s["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(s["threads"])
    if job.workers > 1:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = tf.distribute.get_strategy()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = network(s, keras)
        update = optimizer(s["optimizer"], keras)
        update.build(model.trainable_variables)
    cost = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images, labels = job.data()
    pairs = tf.data.Dataset.from_tensor_slices((images.transpose(0, 2, 3, 1), labels))
    batches = pairs.shuffle(len(labels)).batch(job.local_batch, drop_remainder=True).prefetch(1)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            # The optimizer adds up the gradients of all processes.
            loss = cost(y, model(x, training=True)) / job.workers
        weights = model.trainable_variables
        update.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    train = tf.function(lambda x, y: strategy.run(step, (x, y)))

    def epoch(data: Any) -> None:
        for x, y in data:
            train(x, y)

    epoch(batches.take(job.order["warmup_steps"]))
    while job.more():
        epoch(batches)
    job.finish(model.count_params(), tf.__version__)


if __name__ == "__main__":
    main()
