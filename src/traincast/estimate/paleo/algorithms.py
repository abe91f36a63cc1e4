"""Which algorithm each convolution uses in each pass.

The original asks the cuDNN of the machine it runs on. Here the choice is an input: one algorithm
for all, a table by layer and batch, or the choices of cuDNN 4 recovered from the authors' demo.
A 1×1 filter is always a matrix product, whatever is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.estimate.paleo.cudnn4 import CHOICES
from traincast.estimate.paleo.net import LayerNet


class Choice(NamedTuple):
    """Algorithm of one layer in each pass: GEMM, FFT, FFT_TILING, or cuDNN's name of one."""

    forward: str = "GEMM"
    data: str = "GEMM"
    filter: str = "GEMM"


GEMM_ONLY = Choice()

_GEMMS = {
    "forward": ("GEMM", "IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "DIRECT"),
    "data": ("GEMM", "ALGO_0", "ALGO_1"),
    "filter": ("GEMM", "ALGO_0", "ALGO_1", "ALGO_3"),
}
_FFTS = {"forward": ("FFT", "FFT_TILING"), "data": ("FFT", "FFT_TILING"), "filter": ("FFT",)}

# cuDNN 4 has no tiled FFT for filter gradients.
_FORCED = {
    "gemm": GEMM_ONLY,
    "fft": Choice("FFT", "FFT", "FFT"),
    "fft-tiled": Choice("FFT_TILING", "FFT_TILING", "FFT"),
}

Table = Mapping[str | tuple[str, int], str | Sequence[str]]
"""Layer, or layer and batch per worker, to one algorithm for all passes or one for each."""


@dataclass(frozen=True, eq=False)
class Algorithms:
    """The rule that gives each layer its algorithms."""

    name: str
    everywhere: Choice | None = None
    """Set where all layers use the same."""
    table: Mapping[tuple[str, int | None], Choice] = field(default_factory=dict)
    """By layer and batch; the batch None stands for any."""

    def of_net(self, net: LayerNet, batch: int, *, gpu: bool) -> dict[str, Choice]:
        """Return the choice of every convolution that does not use GEMM throughout."""
        convs = [layer.name for layer in net.layers if layer.type == "Convolution"]
        if self.name == "cudnn4":
            return _recovered(net, batch) if gpu else {}
        if self.everywhere is not None:
            return {} if self.everywhere == GEMM_ONLY else dict.fromkeys(convs, self.everywhere)
        return {name: self._listed(name, batch, convs) for name in self._names()}

    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.table))

    def _listed(self, name: str, batch: int, convs: Sequence[str]) -> Choice:
        if name not in convs:
            hint = f"the network has {', '.join(convs[:8])}" + (" …" if len(convs) > 8 else "")
            raise UnknownNameError("convolution", name, convs, f"in the algorithm table; {hint}")
        found = self.table.get((name, batch), self.table.get((name, None)))
        if found is None:
            raise InvalidValueError(
                f"the algorithm table has no entry of layer {name!r} for batch {batch}; "
                f"add the key ({name!r}, {batch}), or {name!r} for every batch"
            )
        return found


def algorithms_of(choice: str | Table) -> Algorithms:
    """Return the rule that `choice` stands for: gemm, fft, fft-tiled, cudnn4 or a table."""
    if isinstance(choice, Mapping):
        return Algorithms("table", None, {_key(k): _choice(k, v) for k, v in choice.items()})
    name = str(choice).lower().replace("_", "-").replace("tiling", "tiled")
    if name in _FORCED:
        return Algorithms(name, _FORCED[name])
    if name == "cudnn4":
        return Algorithms(name)
    known = [*_FORCED, "cudnn4"]
    hint = f"use {', '.join(known)}, or a table such as {{'conv2': ('FFT', 'GEMM', 'FFT')}}"
    if name == "heuristics":
        hint = f"the choice of a real cuDNN cannot be asked for here; {hint}"
    raise UnknownNameError("algorithm", str(choice), known, hint)


def _key(key: str | tuple[str, int]) -> tuple[str, int | None]:
    return (key, None) if isinstance(key, str) else (key[0], key[1])


def _choice(key: object, value: str | Sequence[str]) -> Choice:
    names = [value] * 3 if isinstance(value, str) else list(value)
    if len(names) != 3:
        raise InvalidValueError(
            f"the algorithm table gives {key!r} {len(names)} algorithms; "
            "write one, or three: forward, data gradient, filter gradient"
        )
    parts = zip(Choice._fields, names, strict=True)
    return Choice(*(_checked(key, part, name.upper()) for part, name in parts))


def _checked(key: object, part: str, name: str) -> str:
    if name not in (*_GEMMS[part], *_FFTS[part]):
        known = ", ".join((*_GEMMS[part], *_FFTS[part]))
        why = "Paleo has no cost of WINOGRAD" if name == "WINOGRAD" else f"{name} is unknown"
        raise InvalidValueError(f"the algorithm table, {key!r}, {part}: {why}; use one of {known}")
    return name


def _recovered(net: LayerNet, batch: int) -> dict[str, Choice]:
    if net.name not in CHOICES:
        raise InvalidValueError(
            f"the choices of cuDNN 4 are known for {' and '.join(CHOICES)}, not for {net.name!r}; "
            'use algorithms="gemm" or a table'
        )
    by_batch = CHOICES[net.name]
    if batch not in by_batch:
        raise InvalidValueError(
            f"the choices of cuDNN 4 for {net.name} are known for the batches "
            f"{', '.join(map(str, by_batch))} of one worker, not for {batch}; use one of these, "
            'algorithms="gemm" or a table'
        )
    return {layer: Choice(*names) for layer, names in by_batch[batch].items()}
