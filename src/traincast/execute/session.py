"""One module under one plan in one process: names ops, places their parts, holds the weights.

The plan is first laid out without data (`lay_out`): one forward pass on tensors that have shapes
alone tells which slice of every weight each process needs, which samples it loads, and whether the
plan is one of this model at all. Then every process keeps its slices and drops the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from traincast.errors import InvalidValueError
from traincast.execute.layout import (
    Box,
    Boxes,
    Layout,
    Shape,
    hull,
    overlap,
    planned,
    shape_of,
    whole,
)
from traincast.execute.value import Sharded
from traincast.execute.wire import Tie, Wire, nothing, part
from traincast.parallel.strategy import Strategy

Needs = Callable[[Box], Sequence[Box | None]]
Compute = Callable[[Box, list[torch.Tensor], list[Any]], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """How a part of an op's output is computed."""

    needs: Needs
    """Box of each input that a box of the output needs; None for nothing of it."""
    compute: Compute
    """A box of the output from those boxes and from the slices of the weights."""
    weights: Sequence[tuple[Any, Callable[[Box], Box]]] = ()
    """Weights, each with the box that a box of the output needs; a weight may be None."""
    dtype: torch.dtype | None = None
    """Type of the output; the first input's by default."""
    grad: bool = True
    """Whether a gradient passes through."""
    prepare: Callable[[Boxes], None] | None = None
    """Called with the boxes of all processes before anything is computed."""


@dataclass
class Session:
    """A module, a plan and this process's place in it."""

    module: torch.nn.Module
    strategy: Strategy
    wire: Wire
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int = 0
    step: int = 0
    """Number of the training step; picks the dropout masks."""
    calls: int = 0
    """Dropouts so far in this step."""

    def __post_init__(self) -> None:
        self.layers = {layer.name: layer for layer in self.strategy.layers}
        self.met: set[str] = set()
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        self.names = {id(t): name for name, t in tensors.items()}
        self.shapes: dict[str, Shape] = {n: tuple(t.shape) for n, t in tensors.items()}
        self.held: dict[str, Boxes] = {}
        """What each process holds of a weight; empty while the plan is laid out."""
        self.feeds: dict[str, Boxes] = {}
        """What each process needs of an input."""
        self.whole_ops: dict[str, str] = {}
        """Functions that device 0 computes whole, each with the first op that does."""
        self._uses: dict[str, list[Boxes]] = {}
        self._sets: set[tuple[int, ...]] = set()
        self._stack: list[str] = []
        self._taken: set[str] = set()
        self._loose: set[str] = set()
        """Modules in which device 0 computes something whole, which the graph may list by parts."""
        self._ran: set[str] = set()
        self._layers = 0
        self._paths = {id(m): path for path, m in self.module.named_modules()}

    @property
    def laying_out(self) -> bool:
        """Whether no data is there yet."""
        return not self.wire.connected

    def here(self) -> str:
        """Return the path of the module that is running, for messages."""
        return self._stack[-1] if self._stack and self._stack[-1] else self.strategy.model

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Follow which module is running, for the length of one forward pass."""
        hooks = torch.nn.modules.module
        self._stack, self._taken, self.calls, self._layers = [], set(), 0, 0
        before = hooks.register_module_forward_pre_hook(self._enter)
        after = hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        path = self._paths.get(id(module))
        self._stack.append(path if path is not None else self._stack[-1] if self._stack else "")
        self._ran.add(self._stack[-1])

    def _leave(self, _module: torch.nn.Module, _args: Any, _out: Any) -> None:
        self._stack.pop()

    def _name(self, kind: str, label: str) -> str:
        """Return an op's name by the rule that names the ops of a traced graph."""
        layer = self._stack[-1] if self._stack else ""
        bare = layer and layer not in self._taken and kind != "copy"
        name = layer if bare else f"{layer}.{label}".strip(".")
        count, free = 0, name
        while free in self._taken:
            count += 1
            free = f"{name}_{count}"
        return free

    def lists(self, kind: str, label: str) -> bool:
        """Tell whether the plan places the op that comes next."""
        return self._name(kind, label) in self.layers

    def place(
        self, *, kind: str, label: str, shape: Shape, dims: Mapping[str, int], follow: Layout
    ) -> Layout:
        """Return the layout of an op's output: the plan's, or `follow` where it lists none.

        `label` is what the graph calls the op within a module that has several, `dims` are the
        axes that a plan can split.
        """
        name = self._name(kind, label)
        if name in self.layers and self.layers[name].op not in ("", kind):
            # The graph also lists what the module computes from weights alone, unseen here.
            inner = f"{self._stack[-1] if self._stack else ''}.{label}"
            if inner not in self._taken and getattr(self.layers.get(inner), "op", "") == kind:
                self._taken.add(name)
                name = inner
        self._taken.add(name)
        split = self.layers.get(name)
        if split is None:
            return follow
        if split.op and split.op != kind:
            raise InvalidValueError(
                f"the plan is not one of {self.strategy.model} as it is built here: "
                f"its layer {name!r} is a {split.op}, the model's is a {kind}; make a new plan, "
                "and if that ends here too, the model cannot be run split"
            )
        self.met.add(name)
        return planned(split, shape, dims)

    def entire(self, label: str) -> None:
        """Note that device 0 computes the next op whole, under the name that a graph gives it."""
        name = self._name(label, label)
        self._taken.add(name)
        self.met.add(name)
        self.whole_ops.setdefault(label, name)
        self._loose.add(self._stack[-1] if self._stack else "")

    def run(
        self, op: Part, inputs: Sequence[Sharded], layout: Layout, follows: Sharded | None = None
    ) -> Sharded:
        """Compute this process's part of an op, a layer of its own unless it follows one."""
        boxes = layout.boxes(self.wire.world)
        box = boxes[self.wire.rank]
        if op.prepare is not None:
            op.prepare(boxes)
        needs = [None if b is None else op.needs(b) for b in boxes]
        wanted = [tuple(None if n is None else n[i] for n in needs) for i in range(len(inputs))]
        fetched = [x.need(w) for x, w in zip(inputs, wanted, strict=True)]
        weights = [
            None if t is None else self.weight(t, tuple(None if b is None else w(b) for b in boxes))
            for t, w in op.weights
        ]
        dtype = op.dtype or inputs[0].dtype
        if box is None:
            grad = torch.is_grad_enabled() and op.grad and dtype.is_floating_point and (
                any(t.requires_grad for t in fetched)
                or any(t is not None and t.requires_grad for t, _ in op.weights)
            )  # fmt: skip
            like = torch.empty(0, dtype=dtype, device=inputs[0].local.device)
            local = nothing(like, fetched, grad)
        else:
            local = op.compute(box, fetched, weights)
            ties = [
                t
                for t, w in zip(fetched, wanted, strict=True)
                if w[self.wire.rank] is None and t.requires_grad
            ]
            local = Tie.apply(local, *ties) if ties else local
        self._layers += 1
        layer = self._layers if follows is None else follows.layer
        return Sharded(self, local, boxes, layout, layout.shape, (), layout.shape, "", layer)

    def weight(self, tensor: torch.Tensor, wanted: Boxes) -> torch.Tensor | None:
        """Return this process's slice of a parameter or buffer of the module."""
        want = wanted[self.wire.rank]
        name = self.names.get(id(tensor))
        if name is None:  # computed from parameters by the module: every process has it whole
            return None if want is None else part(tensor, want, whole(tensor.shape))
        if self.laying_out:
            self._uses.setdefault(name, []).append(wanted)
            shape = (0,) if want is None else shape_of(want)
            return torch.empty(shape, dtype=tensor.dtype, device="meta")
        held = self.held[name][self.wire.rank]
        return None if want is None or held is None else part(tensor, want, held)

    def together(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return ranks that sum something together; while laying out, note them for a group."""
        found = tuple(sorted(ranks))
        if self.laying_out:
            self._sets.add(found)
        return found

    def feed(self, name: str, tensor: torch.Tensor, batch: int) -> Sharded:
        """Return an input of which this process has loaded the samples that it needs."""
        shape = (batch, *tensor.shape[1:])
        boxes = self.feeds.get(name, (None,) * self.wire.world)
        return Sharded(self, tensor, boxes, None, shape, (), shape, name)

    def loaded(self, value: Sharded, wanted: Boxes) -> torch.Tensor:
        """Return the wanted box of an input."""
        want = wanted[self.wire.rank]
        if self.laying_out:
            before = self.feeds.get(value.input, (None,) * self.wire.world)
            grown = tuple(hull(a, b) for a, b in zip(before, wanted, strict=True))
            self.feeds[value.input] = tuple(
                None if g is None else (g[0], *whole(value.base[1:])) for g in grown
            )
            shape = (0,) if want is None else shape_of(want)
            return torch.empty(shape, dtype=value.dtype, device="meta")
        held = value.boxes[self.wire.rank]
        if want is None or held is None:
            return value.local.new_empty(0)
        return part(value.local, want, held)

    def lay_out(self, run: Callable[[], object]) -> None:
        """Run a forward pass without data and decide what each process holds."""
        before = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        with torch.no_grad(), self.watching():
            run()
        for name, buffer in self.module.named_buffers():  # a module may count its batches
            buffer.data = before[name]
        # What depends on no input, such as an embedding of positions, every process makes whole.
        lost = [x for x in self.strategy.layers if x.parts > 1 and not self._has_run(x.name)]
        if lost:
            shown = ", ".join(x.name for x in lost[:3]) + (", …" if len(lost) > 3 else "")
            raise InvalidValueError(
                f"the plan splits {len(lost)} of {len(self.layers)} layers that "
                f"{self.strategy.model} does not run ({shown}); it is a plan of another model: "
                "make a new one with `traincast plan`"
            )
        ranks = range(self.wire.world)
        for name, shape in self.shapes.items():
            everywhere: Boxes = tuple(whole(shape) for _ in ranks)
            boxes: Boxes = (None,) * self.wire.world if name in self._uses else everywhere
            for use in self._uses.get(name, ()):
                boxes = tuple(hull(a, b) for a, b in zip(boxes, use, strict=True))
            apart = all(a == b or overlap(a, b) is None for a in boxes for b in boxes if a and b)
            self.held[name] = boxes if apart else everywhere
            self._sets.update(self.sharers(name, rank) for rank in ranks)

    def _has_run(self, name: str) -> bool:
        """Tell whether an op has been met, or may be in what a module does by other means."""
        parent = name.rpartition(".")[0]
        return name in self.met or name in self._ran or parent in self._loose

    def sharers(self, name: str, rank: int | None = None) -> tuple[int, ...]:
        """Return the ranks that hold the same slice of a weight as this one."""
        boxes = self.held[name]
        mine = boxes[self.wire.rank if rank is None else rank]
        return tuple(r for r, b in enumerate(boxes) if b == mine and mine is not None)

    def slim(self, laid_out: Session) -> None:
        """Take over what was laid out, and keep this process's slices of the weights alone."""
        self.held, self.feeds = laid_out.held, laid_out.feeds
        self.wire.prepare(s for s in laid_out._sets if s)
        modules = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        for name, tensor in modules.items():
            box = self.held[name][self.wire.rank]
            full = whole(tensor.shape)
            if box is None:
                tensor.data = tensor.data.new_empty(0)
            elif box != full:
                tensor.data = part(tensor.data, box, full).clone()
