"""An expression of the user's own: `a*filters**p*batch/workers + c*log(workers) + d`.

It is parsed by Python's own grammar and walked here: numbers, names, + - * / **, and a few
functions; nothing is ever executed. Names that are columns are factors; all others are constants.
Constants in which the time is linear together are zero or more and solved for; the others, such as
exponents, are searched.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.fit.constants import Array, Bound, Constant

FREE = (-3.0, 3.0)
"""Bounds of a searched constant, unless the user gives others."""
LONGEST = 2_000
_MOST_CONSTANTS = 40
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "log": np.log, "log2": np.log2, "sqrt": np.sqrt, "exp": np.exp, "ceil": np.ceil,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip
_PAIRS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.true_divide,
    ast.Pow: np.power,
}  # fmt: skip
_HUGE = 1e9


@dataclass(frozen=True, kw_only=True)
class ExpressionForm:
    """A user's expression."""

    source: str
    factors: tuple[str, ...]
    """The columns it may name."""
    unit: float = 1.0
    """What times are divided by; coefficients are in this unit."""
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def tree(self) -> ast.expr:
        """The parsed expression."""
        return parse(self.source)

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """Searched constants first, then those that are solved for."""
        names = [n for n in names_in(self.tree) if n not in self.factors]
        linear: list[str] = []
        # From the end: in `a*x**p + c` and in `(a + b*x)*d` the additive ones are solved for.
        for name in reversed(names):
            if name not in self.bounds and _degree(self.tree, {*linear, name}) <= 1:
                linear.append(name)
        free = [n for n in names if n not in linear]
        found = []
        for name in free:
            low, high = self.bounds.get(name, FREE)
            found.append(Constant(name=name, kind="free", low=low, high=high))
        return (*found, *(Constant(name=n, kind="coefficient", penalised=False)
                          for n in names if n in linear))  # fmt: skip

    def bind(self, columns: Mapping[str, NDArray[np.generic]]) -> Bound:
        """Return the expression at runs."""
        return _BoundExpression(self, columns)

    def text(self) -> str:
        """Return it as the user wrote it."""
        return self.source


def parse(source: str) -> ast.expr:
    """Return the tree of an expression; raise where it holds anything but arithmetic."""
    if len(source) > LONGEST:
        raise InvalidValueError(f"--expr has {len(source)} characters; write at most {LONGEST}")
    text = source.replace("^", "**").strip()
    head, equals, rest = text.partition("=")
    if equals and head.strip().isidentifier():
        text = rest.strip()
    try:
        tree = ast.parse(text, mode="eval").body
        _check(tree, source)
    except SyntaxError as error:
        where = f" at character {error.offset}" if error.offset else ""
        raise InvalidValueError(
            f"--expr {source!r} is no expression{where}; write for example "
            "'a*filters**p*batch**q + c'"
        ) from None
    except (RecursionError, MemoryError, ValueError):
        raise InvalidValueError("--expr is nested too deeply; write it simpler") from None
    return tree


def _check(node: ast.expr, source: str) -> None:
    if isinstance(node, ast.BinOp) and type(node.op) in _PAIRS:
        _check(node.left, source)
        _check(node.right, source)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        _check(node.operand, source)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id not in FUNCTIONS:
            known = ", ".join(FUNCTIONS)
            raise UnknownNameError("function", node.func.id, FUNCTIONS, f"use {known}")
        wanted = 2 if node.func.id in ("min", "max") else 1
        if len(node.args) != wanted:
            s = "" if wanted == 1 else "s"
            raise InvalidValueError(f"--expr: {node.func.id} takes {wanted} argument{s}")
        for argument in node.args:
            _check(argument, source)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise InvalidValueError(f"--expr: {node.value!r} is no number")
    elif not isinstance(node, ast.Name):
        shown = ast.unparse(node)[:60]
        raise InvalidValueError(
            f"--expr: {shown!r} is not allowed; use numbers, names, + - * / ** and "
            f"{', '.join(FUNCTIONS)}"
        )


def names_in(node: ast.expr) -> list[str]:
    """Return the names of an expression in the order of their first use, functions apart."""
    return list(dict.fromkeys(_names(node)))


def _names(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.BinOp):
        yield from _names(node.left)
        yield from _names(node.right)
    elif isinstance(node, ast.UnaryOp):
        yield from _names(node.operand)
    elif isinstance(node, ast.Call):
        for argument in node.args:
            yield from _names(argument)


def _degree(node: ast.expr, names: set[str]) -> float:
    """Return the degree of an expression in some names together; infinite if no polynomial."""
    if isinstance(node, ast.Name):
        return float(node.id in names)
    if isinstance(node, ast.UnaryOp):
        return _degree(node.operand, names)
    if isinstance(node, ast.BinOp):
        left, right = _degree(node.left, names), _degree(node.right, names)
        if isinstance(node.op, ast.Add | ast.Sub):
            return max(left, right)
        if isinstance(node.op, ast.Mult):
            return left + right
        if isinstance(node.op, ast.Div) and right == 0:
            return left
        return 0.0 if left == right == 0 else np.inf
    if isinstance(node, ast.Call):
        return 0.0 if all(_degree(a, names) == 0 for a in node.args) else np.inf
    return 0.0


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand, values)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp):
        pair = _PAIRS[type(node.op)]
        return pair(_value(node.left, values), _value(node.right, values))
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    return FUNCTIONS[node.func.id](*(_value(a, values) for a in node.args))


def check_expression(form: ExpressionForm) -> None:
    """Raise where an expression has nothing to fit, or too much."""
    count = len(form.constants)
    if not count:
        names = ", ".join(form.factors[:10])
        raise InvalidValueError(
            f"--expr {form.source!r} has no constant to fit: every name in it is a column ({names})"
        )
    if count > _MOST_CONSTANTS:
        raise InvalidValueError(f"--expr has {count} constants; use at most {_MOST_CONSTANTS}")
    if not any(name in form.factors for name in names_in(form.tree)):
        names = ", ".join(form.factors[:10])
        raise InvalidValueError(
            f"--expr {form.source!r} names no column of the table; it has {names}"
        )


class _BoundExpression:
    def __init__(self, form: ExpressionForm, columns: Mapping[str, NDArray[np.generic]]) -> None:
        used = [n for n in names_in(form.tree) if n in form.factors]
        self.values = {n: np.asarray(columns[n], float)[None] for n in used}
        self.runs = len(next(iter(columns.values())))
        self.form = form
        self.names = [c.name for c in form.constants]
        self.split = sum(not c.linear for c in form.constants)

    def times(self, x: Array) -> Array:
        """Return times over the unit; what is not defined is huge, so that no fit goes there."""
        values = dict(self.values)
        for i, name in enumerate(self.names):
            scale = self.form.unit if i >= self.split else 1.0
            values[name] = x[:, i, None] * scale
        with np.errstate(all="ignore"):
            found = _value(self.form.tree, values)
        found = np.broadcast_to(np.asarray(found, float) / self.form.unit, (len(x), self.runs))
        whole = np.nan_to_num(found, nan=_HUGE, posinf=_HUGE, neginf=-_HUGE)
        return np.asarray(np.clip(whole, -_HUGE, _HUGE))

    def design(self, theta: Array) -> Array:
        """Return what each linear constant is multiplied by: the time's derivative in it.

        What the expression is with all of them 0 is not in it; `offset` is.
        """
        count = len(self.names) - self.split
        x = np.concatenate([theta, np.zeros((len(theta), count))], axis=1)
        zero = self.times(x)
        found = np.empty((len(theta), count, self.runs))
        for i in range(count):
            x[:, self.split + i] = 1.0
            found[:, i] = self.times(x) - zero
            x[:, self.split + i] = 0.0
        return found

    def offset(self, theta: Array) -> Array:
        """Return the times with every linear constant 0 (S, N)."""
        count = len(self.names) - self.split
        return self.times(np.concatenate([theta, np.zeros((len(theta), count))], axis=1))

    def jacobian(self, x: Array) -> tuple[Array, Array]:
        """Return times and derivatives, by central differences in the searched constants."""
        found = np.empty((len(x), len(self.names), self.runs))
        found[:, self.split :] = self.design(x[:, : self.split])
        moved = x.copy()
        for i in range(self.split):
            step = 1e-6 * np.maximum(np.abs(x[:, i]), 1.0)
            moved[:, i] = x[:, i] + step
            above = self.times(moved)
            moved[:, i] = x[:, i] - step
            found[:, i] = (above - self.times(moved)) / (2 * step)[:, None]
            moved[:, i] = x[:, i]
        return self.times(x), found
