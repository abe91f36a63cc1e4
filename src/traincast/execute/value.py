"""A tensor of which every process holds its part, and which a module takes for a tensor.

Torch functions that meet one call its `__torch_function__`, which looks up the rule that computes
each part. Nothing is traced: the module's own forward runs, in every process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from traincast.errors import InvalidValueError
from traincast.execute.layout import Boxes, Layout, Shape, within
from traincast.execute.views import Reshape, Step
from traincast.execute.wire import fetch

if TYPE_CHECKING:
    from traincast.execute.session import Session

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
"""Name of a torch function or method to the rule that runs it split."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule: a function of the session, the torch function and its arguments."""

    def add(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = function
        return function

    return add


class Sharded(torch.Tensor):  # type: ignore[misc]
    """A distributed tensor: this process's part of a base, and views of the base.

    To PyTorch it is a tensor without data. `local` is this process's part of the base, an empty
    tensor where it has none; `boxes` is what each process holds of the base, whose lengths are
    `base`; `grid` is the layout of these parts, None for an input of which every process loads what
    it needs, by the name `input`. `steps` are the views from the base to this tensor of `lengths`.
    `layer` is the number of the layer that made it or that its maker follows, -1 for an input.
    """

    local: torch.Tensor
    session: Session
    boxes: Boxes
    grid: Layout | None
    base: Shape
    steps: tuple[Step, ...]
    lengths: Shape
    input: str
    layer: int

    @staticmethod
    def __new__(
        cls,
        session: Session,
        local: torch.Tensor,
        boxes: Boxes,
        layout: Layout | None,
        base: Shape,
        steps: tuple[Step, ...] = (),
        lengths: Shape = (),
        name: str = "",
        layer: int = -1,
    ) -> Sharded:
        """Make one; all processes make the same ones in the same order."""
        blank = torch.empty(lengths, dtype=local.dtype, device="meta")
        self: Sharded = torch.Tensor._make_subclass(cls, blank)
        self.session, self.local, self.boxes, self.grid = session, local, boxes, layout
        self.base, self.steps, self.lengths = base, steps, lengths
        self.input, self.layer = name, layer
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a torch function by its rule."""
        kwargs = dict(kwargs or {})
        if func.__name__ == "__get__":
            return _attribute(args[0], func.__self__.__name__, func)
        session = next(v.session for v in _values((args, kwargs)))
        name = getattr(func, "__name__", str(func))
        inplace = bool(kwargs.pop("inplace", False))
        if name.endswith("_") and not name.startswith("_") and name not in RULES:
            name, inplace = name[:-1], True
            func = getattr(torch, name, None) or getattr(torch.nn.functional, name, None) or func
        if name.startswith("__") and name.strip("_") in RULES:
            name = name.strip("_")
        if name in RULES:
            result = RULES[name](session, func, *args, **kwargs)
        else:
            from traincast.execute.rules.entire import run_whole

            result = run_whole(session, name, func, args, kwargs)
        if inplace and is_sharded(args[0]):
            args[0]._become(result)
            return args[0]
        return result

    @property
    def shape(self) -> torch.Size:
        """Lengths of the whole tensor."""
        return torch.Size(self.lengths)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the elements."""
        return self.local.dtype

    @property
    def device(self) -> torch.device:
        """Where this process's part lies, or will."""
        return self.session.device

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient flows into it."""
        return bool(self.local.requires_grad)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.lengths)

    def dim(self) -> int:
        """Return the number of axes."""
        return len(self.lengths)

    def size(self, axis: int | None = None) -> Any:
        """Return all lengths, or one."""
        return self.shape if axis is None else self.lengths[axis]

    def numel(self) -> int:
        """Return the number of elements of the whole tensor."""
        return math.prod(self.lengths)

    def is_floating_point(self) -> bool:
        """Tell whether the elements are floating-point numbers."""
        return bool(self.local.dtype.is_floating_point)

    def __len__(self) -> int:
        return self.lengths[0]

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(self.lengths[0])])

    def __bool__(self) -> bool:
        raise self._elsewhere("branches on")

    def item(self) -> Any:
        """Refuse: a process does not know what lies on another."""
        raise self._elsewhere("reads")

    __float__ = __int__ = __index__ = tolist = numpy = item

    def _elsewhere(self, does: str) -> InvalidValueError:
        return InvalidValueError(
            f"{self.session.here()}: the model {does} values that lie on several processes, so it "
            "cannot be run split"
        )

    def __repr__(self) -> str:
        return f"Sharded({self.lengths}, {self.dtype}, part {self.boxes[self.session.wire.rank]})"

    def __getitem__(self, index: Any) -> Any:
        return RULES["getitem"](self.session, None, self, index)

    def _become(self, other: Sharded) -> None:
        for name in ("local", "boxes", "grid", "base", "steps", "lengths", "input", "layer"):
            setattr(self, name, getattr(other, name))

    def viewed(self, step: Step, lengths: Shape) -> Sharded:
        """Return a view of this tensor."""
        return Sharded(
            self.session, self.local, self.boxes, self.grid, self.base, (*self.steps, step),
            lengths, self.input, self.layer,
        )  # fmt: skip

    def need(self, wanted: Boxes) -> torch.Tensor:
        """Return the box that this process wants, when each process wants one; moves data."""
        chain = [wanted]
        for step in reversed(self.steps):
            chain.append(tuple(None if b is None else step.back(b) for b in chain[-1]))
        if self.grid is None:
            tensor = self.session.loaded(self, chain[-1])
        else:
            tensor = fetch(self.session.wire, self.local, self.boxes, chain[-1])
        mine = [boxes[self.session.wire.rank] for boxes in reversed(chain)]
        for step, source, box in zip(self.steps, mine, mine[1:], strict=False):
            if source is not None and box is not None:
                tensor = step.apply(tensor, source, box)
        return tensor

    def unmerged(self) -> Sharded:
        """Return (sample, position, …) where the module has merged samples and positions."""
        last = self.steps[-1] if self.steps else None
        if not isinstance(last, Reshape) or len(last.source) != len(last.shape) + 1:
            return self
        if last.shape[0] != last.source[0] * last.source[1]:
            return self
        return Sharded(
            self.session, self.local, self.boxes, self.grid, self.base, self.steps[:-1],
            last.source, self.input, self.layer,
        )  # fmt: skip

    def near(self) -> Layout:
        """Return the layout of this tensor that is nearest to where its base lies."""
        layout = self.grid
        if layout is None:
            from traincast.execute.layout import by_sample

            return by_sample(self.lengths, self.session.wire.world)
        for step in self.steps:
            layout = step.push(layout)
        return layout


def _attribute(value: Sharded, name: str, get: Any) -> Any:
    """Return an attribute that is no property of this class."""
    if name in ("T", "mT"):
        order = list(range(value.dim()))
        order = order[::-1] if name == "T" else [*order[:-2], order[-1], order[-2]]
        return RULES["permute"](value.session, None, value, *order)
    if name == "data":
        return RULES["detach"](value.session, torch.detach, value)
    with torch._C.DisableTorchFunctionSubclass():
        found = get(value)
    if isinstance(found, torch.Tensor):
        raise InvalidValueError(
            f"{value.session.here()}: a tensor's attribute {name} cannot be had of one that lies "
            "on several processes"
        )
    return found


def is_sharded(value: object) -> bool:
    """Tell whether a value is distributed; isinstance cannot, as it passes for a tensor."""
    return type(value) is Sharded


def _values(tree: Any) -> Iterator[Sharded]:
    if is_sharded(tree):
        yield tree
    elif type(tree) in (list, tuple):
        for item in tree:
            yield from _values(item)
    elif type(tree) is dict:
        yield from _values(list(tree.values()))


def operand(value: Any, box: Any, like: torch.Tensor) -> Any:
    """Return what a plain operand of an elementwise function contributes to a box."""
    from traincast.execute.layout import broadcast

    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    inner = broadcast(box, value.shape)
    return value[within(inner, tuple((0, n) for n in value.shape))].to(like.device)


def _operator(name: str, reverse: bool = False) -> Callable[..., Any]:
    def run(self: Sharded, other: Any) -> Any:
        if reverse and not isinstance(other, torch.Tensor):
            other = torch.tensor(other, dtype=self.dtype)
        args = (other, self) if reverse else (self, other)
        return Sharded.__torch_function__(getattr(torch, name), (), args)

    return run


def _inplace(name: str) -> Callable[..., Any]:
    def run(self: Sharded, other: Any) -> Any:
        return Sharded.__torch_function__(
            getattr(torch, name), (), (self, other), {"inplace": True}
        )

    return run


for _sign, _name in (
    ("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div"), ("pow", "pow"),
    ("matmul", "matmul"),
):  # fmt: skip
    setattr(Sharded, f"__{_sign}__", _operator(_name))
    setattr(Sharded, f"__r{_sign}__", _operator(_name, reverse=True))
    setattr(Sharded, f"__i{_sign}__", _inplace(_name))
