"""One training step on several workers: data parallel, model parallel, or both (hybrid).

Data parallel: every worker runs the whole network on its share of the batch, then all exchange
gradients. Model parallel: branches and splits run on devices of their own and fetch what they
need; a lower and an upper bound say how much of that is at once. Hybrid is Krizhevsky's "one weird
trick" (arXiv 1404.5997): layers that are split are model parallel, all others data parallel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from traincast.errors import InvalidValueError
from traincast.estimate.paleo.nested import bounds
from traincast.estimate.paleo.net import LayerNet, is_split
from traincast.estimate.paleo.pricing import Floats, Seconds, fetch_seconds, update_seconds
from traincast.estimate.paleo.rules import Rules
from traincast.estimate.paleo.schemes import exchange_seconds
from traincast.estimate.paleo.tables import PaleoDevice, PaleoNetwork, Software


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that a strategy needs beyond the seconds of the layers."""

    net: LayerNet
    device: PaleoDevice
    network: PaleoNetwork
    ppp: Software
    rules: Rules
    pipeline: bool
    batch: int
    """Samples of one worker."""
    workers: int
    scheme: str
    fetch: str
    """Model parallel only: `link` or, as in the original, `memory`."""


class Part(NamedTuple):
    """Seconds of one part of a step."""

    name: str
    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0
    communication_s: float = 0.0


class Parts(NamedTuple):
    """Parts of a step, and how much longer it is where nothing runs at once."""

    parts: tuple[Part, ...]
    slack_forward_s: float = 0.0
    """From the lower to the upper bound of the forward pass."""
    slack_backward_s: float = 0.0


def data_parallel(seconds: Seconds, at: Setting) -> Parts:
    """Branches run one after another; the exchange comes after the backward pass."""
    part = Part(
        "data",
        float(seconds.forward(pipeline=at.pipeline).sum()),
        float(seconds.backward(pipeline=at.pipeline).sum()),
        update_seconds(at.device, at.net.weight_bytes, pipeline=at.pipeline),
        exchange_seconds(
            at.scheme, at.net.weight_bytes, at.workers, at.network, at.ppp.communication
        ),
    )
    return Parts((part,))


def model_parallel(seconds: Seconds, at: Setting) -> Parts:
    """No update, no exchange, no pipelining, as in the original.

    The original fetches at the device's memory bandwidth whatever the network, and stops with an
    error above four splits and for branches within branches; `fetch="memory"` gives its numbers.
    """
    rate = at.network.bandwidth if at.fetch == "link" else at.device.bandwidth
    fetch = fetch_seconds(at.net, at.batch, at.device, rate, at.ppp.communication)
    forward = _bounds(at.net, seconds.forward(fetch))
    backward = _bounds(at.net, seconds.backward(fetch))
    part = Part("model", forward[0], backward[0])
    return Parts((part,), forward[1] - forward[0], backward[1] - backward[0])


def _bounds(net: LayerNet, seconds: Floats, *, split_only: bool = False) -> tuple[float, float]:
    spent = dict(zip((layer.name for layer in net.layers), seconds.tolist(), strict=True))
    return bounds(net.nested, spent, lambda name: not split_only or is_split(net.by_name[name]))


def hybrid(seconds: Seconds, at: Setting) -> Parts:
    """Unsplit layers in data parallel with a tree exchange, split ones in model parallel.

    The split layers work through the batches of all workers, one after another. What they fetch
    for all but the first is taken out of that; the original counts it in elements, not in bytes,
    and without percent of peak, which published numbers rest on.
    """
    if at.net.splits and at.net.splits != at.workers:
        raise InvalidValueError(
            f"{at.net.name} is split over {at.net.splits} devices, workers = {at.workers}; "
            f"set workers = {at.net.splits}, or use the network split {at.workers} times"
        )
    split = [layer for layer in at.net.layers if is_split(layer)]
    model_bytes = 4 * sum(layer.parameters for layer in split)
    data_bytes = at.net.weight_bytes - model_bytes
    fetch = fetch_seconds(at.net, at.batch, at.device, at.network.bandwidth, at.ppp.communication)
    whole = [not is_split(layer) for layer in at.net.layers]
    data = Part(
        "data",
        float(seconds.forward(fetch, pipeline=at.pipeline)[whole].sum()),
        float(seconds.backward(fetch, pipeline=at.pipeline)[whole].sum()),
        update_seconds(
            at.device, data_bytes, pipeline=at.pipeline and at.rules.pipelines_hybrid_update
        ),
        exchange_seconds("tree", data_bytes, at.workers, at.network, at.ppp.communication),
    )
    ahead = _fetched_ahead(at) if split else 0.0
    lower = [
        _bounds(at.net, spent, split_only=True)[0]
        for spent in (seconds.forward(fetch), seconds.backward(fetch))
    ]
    forward, backward = ((spent - ahead) * at.workers + ahead for spent in lower)
    model = Part("model", forward, backward, update_seconds(at.device, model_bytes))
    return Parts((data, model))


def _fetched_ahead(at: Setting) -> float:
    first = next(at.net.by_name[name] for name in at.net.order if is_split(at.net.by_name[name]))
    elements = at.batch * math.prod(first.inputs[0])
    return elements / (at.network.bandwidth * 2.0**30 / 1e9) * (at.workers - 1)


STRATEGIES = {"data": data_parallel, "model": model_parallel, "hybrid": hybrid}
