"""What a plan trains on: samples drawn once and for all, or a folder of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from traincast.errors import InputFileError, InvalidValueError

_ROUNDS = 8
"""Batches of drawn samples before they come again."""
_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
Sample = tuple[torch.Tensor, ...]


class Drawn(Dataset[Sample]):  # type: ignore[misc]
    """Random samples, each drawn from its own number, so that every process draws the same."""

    def __init__(
        self, inputs: Sequence[torch.Tensor], target: tuple[int, ...], classes: int, limit: int,
        batch: int, seed: int,
    ) -> None:  # fmt: skip
        self._inputs = inputs
        self._target = target
        self._classes = classes
        self._limit = limit
        self._seed = seed
        self._length = batch * _ROUNDS

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Sample:
        draw = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        sample = [
            torch.randn(t.shape[1:], generator=draw)
            if t.is_floating_point()
            else torch.randint(0, self._limit, t.shape[1:], generator=draw, dtype=t.dtype)
            for t in self._inputs
        ]
        if self._classes:
            sample.append(torch.randint(0, self._classes, self._target, generator=draw))
        return tuple(sample)


class Images(Dataset[Sample]):  # type: ignore[misc]
    """Images in one folder a class, scaled to the model's input."""

    def __init__(self, folder: Path, shape: tuple[int, ...], classes: int) -> None:
        if not folder.is_dir():
            raise InputFileError(
                folder, "is no folder", "give one that has a folder for each class"
            )
        names = sorted(p.name for p in folder.iterdir() if p.is_dir())
        self.files = [
            (file, label)
            for label, name in enumerate(names)
            for file in sorted((folder / name).iterdir())
            if file.suffix.lower() in _SUFFIXES
        ]
        if not self.files:
            raise InputFileError(
                folder, "holds no images", "put them in a folder for each class: cats/1.jpg"
            )
        if len(names) > classes:
            raise InvalidValueError(
                f"{folder} has {len(names)} classes, the model tells {classes} apart"
            )
        self._shape = shape

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Sample:
        from PIL import Image, UnidentifiedImageError

        file, label = self.files[index]
        channels, height, width = self._shape
        try:
            with Image.open(file) as image:
                scaled = image.convert("RGB" if channels == 3 else "L").resize((width, height))
        except (UnidentifiedImageError, OSError) as error:
            raise InputFileError(file, "is no image that can be read") from error
        pixels = torch.frombuffer(bytearray(scaled.tobytes()), dtype=torch.uint8)
        picture = pixels.reshape(height, width, channels).permute(2, 0, 1)
        return picture.to(torch.get_default_dtype()) / 127.5 - 1, torch.tensor(label)


def drawn_below(module: torch.nn.Module) -> int:
    """Return the number below which whole-number inputs are drawn: every table has such a row."""
    rows = [m.num_embeddings for m in module.modules() if isinstance(m, torch.nn.Embedding)]
    return int(min([*rows, 1000]))


def batches(
    dataset: Dataset[Sample], batch: int, samples: tuple[int, int] | None, steps: int
) -> Iterator[Any]:
    """Yield this process's samples of each step's batch, in the order of the dataset."""
    length = len(dataset)
    if samples is None:
        first = dataset[0]
        for _ in range(steps):
            yield [t.new_empty((0, *t.shape)) for t in first]
        return
    order = [[(step * batch + i) % length for i in range(*samples)] for step in range(steps)]
    # A generator of its own: what the model draws must not depend on who loads.
    yield from DataLoader(dataset, batch_sampler=order, generator=torch.Generator())
