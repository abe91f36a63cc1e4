"""Trains the network of a sweep in PyTorch; several processes by DistributedDataParallel."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traincast.measure.sweep.workers.harness import CLASSES, SHAPES, Job
else:
    from harness import CLASSES, SHAPES, Job


def network(s: dict[str, Any]) -> Any:
    """Build the network: blocks of convolution, activation, pooling and dropout; one dense."""
    from torch import nn

    channels, side, _ = SHAPES[s["dataset"]]
    kernel, padding = s["kernel"], s["kernel"] // 2 if s["padding"] == "same" else 0
    activations = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
    layers: list[Any] = []
    for place in range(s["layers"]):
        stride = s["stride"] if place == 0 else 1
        layers += [
            nn.Conv2d(channels, s["filters"], kernel, stride, padding),
            activations[s["activation"]](),
        ]
        channels, side = s["filters"], (side + 2 * padding - kernel) // stride + 1
        if s["pool"] != "none":
            layers.append({"max": nn.MaxPool2d, "avg": nn.AvgPool2d}[s["pool"]](2))
            side //= 2
        if s["dropout"]:
            layers.append(nn.Dropout(s["dropout"]))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * side * side, CLASSES))


def optimizer(name: str, parameters: Any) -> Any:
    """Return the optimizer of that name."""
    from torch import optim

    if name == "adam":
        return optim.Adam(parameters, 1e-3)
    if name == "rmsprop":
        return optim.RMSprop(parameters, 1e-3)
    return optim.SGD(parameters, 1e-2, momentum=0.9 if name == "momentum" else 0.0)


def main() -> None:
    """Train as standard input says."""
    job = Job()
    import torch
    from torch import distributed
    from torch.utils.data import DataLoader, TensorDataset

    s = job.settings
    torch.set_num_threads(s["threads"])
    torch.manual_seed(0)
    model = network(s)
    parameters = sum(p.numel() for p in model.parameters())
    if job.workers > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        address = f"tcp://127.0.0.1:{job.order['ports'][0]}"
        distributed.init_process_group("gloo", address, rank=job.rank, world_size=job.workers)
        model = torch.nn.parallel.DistributedDataParallel(model)
    update = optimizer(s["optimizer"], model.parameters())
    images, labels = job.data()
    pairs = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels).long())
    loader = DataLoader(pairs, batch_size=job.local_batch, shuffle=True)
    cost = torch.nn.CrossEntropyLoss()

    def epoch(most: int) -> None:
        for step, (x, y) in enumerate(loader, 1):
            update.zero_grad()
            cost(model(x), y).backward()
            update.step()
            if step == most:
                break

    epoch(job.order["warmup_steps"])
    while job.more():
        epoch(0)
    job.finish(parameters, torch.__version__)


if __name__ == "__main__":
    main()
