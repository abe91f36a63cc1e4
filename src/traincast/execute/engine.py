"""Training under a plan, in one of its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils._pytree import tree_flatten, tree_unflatten

from traincast.errors import InvalidValueError
from traincast.execute import rules as _rules  # noqa: F401  registers them
from traincast.execute.gradients import Gradients
from traincast.execute.layout import Boxes, Range, hull, whole
from traincast.execute.session import Session
from traincast.execute.wire import Wire
from traincast.parallel.strategy import Strategy

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
_ONE_HEAD, _MORE_HEADS = 0.4, 0.3
"""Weight of an auxiliary head's loss: of one (Inception v3), of each of several (GoogLeNet)."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def optimizer_of(name: str, parameters: Sequence[torch.Tensor], lr: float) -> torch.optim.Optimizer:
    """Return an optimizer that treats every element alike, so that slices train as the whole."""
    if name in ("sgd", "momentum"):
        return torch.optim.SGD(parameters, lr=lr, momentum=0.9 if name == "momentum" else 0.0)
    if name not in OPTIMIZERS:
        raise InvalidValueError(f"optimizer {name!r} is unknown; use {', '.join(OPTIMIZERS)}")
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name](parameters, lr=lr)


class Loss:
    """The module's own loss, or cross-entropy of its output, auxiliary heads included."""

    def __init__(self) -> None:
        self.classes = 0
        """Number of classes; 0 where the module returns its loss."""
        self.shape: tuple[int, ...] = ()
        """Lengths of one sample's target."""

    def __call__(self, out: Any, target: Any) -> Any:
        """Return the loss; `target` is a function of a shape, or the targets."""
        own = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
        if own is not None:
            return own
        fields = [f for f in getattr(out, "_fields", ()) if f.startswith("aux")]
        heads = [h for f in fields if (h := getattr(out, f)) is not None]
        y = next(iter(out.values())) if isinstance(out, Mapping) else out
        y = y if isinstance(y, torch.Tensor) else y[0]
        if y.dim() == 0:
            return y
        self.classes = y.shape[-1] if y.dim() == 3 else y.shape[1]
        self.shape = (y.shape[1],) if y.dim() == 3 else tuple(y.shape[2:])
        labels = target(self.shape) if callable(target) else target
        total = self._entropy(y, labels)
        for head in heads:
            share = _ONE_HEAD if len(heads) == 1 else _MORE_HEADS
            total = total + self._entropy(head, labels) * share
        return total

    @staticmethod
    def _entropy(y: Any, labels: Any) -> Any:
        if y.dim() == 3:
            y, labels = y.reshape(-1, y.shape[-1]), labels.reshape(-1)
        return F.cross_entropy(y, labels)


class Engine:
    """A module that trains in parts; every process of a plan has one."""

    def __init__(
        self,
        module: torch.nn.Module,
        strategy: Strategy,
        arguments: Arguments,
        wire: Wire,
        *,
        optimizer: str = "sgd",
        lr: float = 0.01,
        seed: int = 0,
    ) -> None:
        """Lay the plan out and keep this process's slices of the module.

        `arguments` are those of the module's forward for any number of samples; their values are
        not read.
        """
        self.loss = Loss()
        self.batch = strategy.batch
        leaves, self._form = tree_flatten(arguments)
        self._plain = leaves
        self._fed = [i for i, t in enumerate(leaves) if isinstance(t, torch.Tensor) and t.dim()]
        self.inputs = [leaves[i] for i in self._fed]
        blank = Session(module, strategy, Wire(wire.rank, wire.world, connected=False), seed=seed)
        blank.lay_out(lambda: self._forward(blank, module, None))
        self.session = Session(module, strategy, wire, seed=seed)
        self.samples: Range | None = None
        """Samples of a batch that this process loads; None for none."""
        self.module = module
        if wire.connected:
            self.session.slim(blank)
            self._share_samples()
        held = [p for n, p in module.named_parameters() if blank.held[n][wire.rank] is not None]
        trained = [p for p in held if p.requires_grad]
        self.optimizer = optimizer_of(optimizer, trained or [torch.zeros(0)], lr)
        named = list(module.named_parameters()) if wire.connected else []
        self.gradients = Gradients(named, self.session.sharers, wire)

    def _share_samples(self) -> None:
        """Let every process load one range of samples, for all inputs alike."""
        session = self.session
        ranges: list[Range | None] = []
        for rank in range(session.wire.world):
            box = None
            for boxes in session.feeds.values():
                held = boxes[rank]
                box = hull(box, None if held is None else held[:1])
            ranges.append(None if box is None else box[0])
        shapes = {f"input{i}": tuple(self._plain[i].shape[1:]) for i in self._fed}
        shapes["target"] = self.loss.shape
        session.feeds = {
            name: tuple(None if r is None else (r, *whole(shapes[name])) for r in ranges)
            for name in session.feeds
        }
        self.samples = ranges[session.wire.rank]

    def _forward(self, session: Session, module: torch.nn.Module, data: Any) -> Any:
        """Return the loss; `data` holds this process's inputs and targets, None for no values."""
        device = session.device if data is not None else "meta"
        leaves = list(self._plain)
        for number, i in enumerate(self._fed):
            like = leaves[i]
            value = (
                torch.empty(like.shape, dtype=like.dtype, device="meta")
                if data is None
                else data[number].to(device)
            )
            leaves[i] = session.feed(f"input{i}", value, self.batch)

        def target(shape: tuple[int, ...]) -> Any:
            blank = torch.empty((1, *shape), dtype=torch.int64, device="meta")
            return session.feed(
                "target", blank if data is None else data[-1].to(device), self.batch
            )

        args, kwargs = tree_unflatten(leaves, self._form)
        return self.loss(module(*args, **kwargs), target)

    def step(self, data: Sequence[torch.Tensor]) -> float | None:
        """Train on one batch and return its loss, on device 0 alone.

        `data` holds the samples `self.samples` of every input, and of the targets behind them.
        """
        self.optimizer.zero_grad(set_to_none=True)
        self.gradients.begin()
        with self.session.watching():
            loss = self._forward(self.session, self.module, data)
        torch.autograd.backward([loss.local], [torch.ones_like(loss.local)])
        self.gradients.finish()
        self.optimizer.step()
        self.session.step += 1
        return float(loss.local.detach()) if self.session.wire.rank == 0 else None

    def state(self) -> dict[str, torch.Tensor]:
        """Return all weights whole, on device 0; empty on the others."""
        wire, session = self.session.wire, self.session
        named = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        found = {}
        for name, tensor in named.items():
            boxes = session.held[name]
            owners: Boxes = tuple(
                b if b is not None and b not in boxes[:r] else None for r, b in enumerate(boxes)
            )
            wanted: Boxes = (whole(session.shapes[name]), *[None] * (wire.world - 1))
            moved = wire.move(tensor.detach(), owners, wanted)
            if wire.rank == 0:
                found[name] = moved
        return found
