"""Networks that no common library has, written from their publications.

Each function returns a module and example inputs, so that it is a model reference of its own:
`traincast.ingest.zoo.modules:unet`. Modules return logits; the loss is left to the caller.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


def lenet5(batch: int = 2, image: int = 32) -> Built:
    """LeNet-5 as commonly implemented, on grey 32×32 images: 61,706 parameters.

    LeCun et al. 1998, figure 2. As is usual today, C3 sees all six maps of S2, subsampling has no
    weights, and the output is linear where the paper has radial basis functions.
    """
    side = ((image - 4) // 2 - 4) // 2
    module = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side * side, 120), nn.Tanh(),
        nn.Linear(120, 84), nn.Tanh(),
        nn.Linear(84, 10),
    )  # fmt: skip
    return module, (torch.zeros(batch, 1, image, image),)


def mnist_small(batch: int = 2) -> Built:
    """The small network of Viebke et al. 2019, on grey 29×29 images: 6,405 weights."""
    return _mnist(batch, ((5, 4, 2), (10, 5, 3)), 50)


def mnist_medium(batch: int = 2) -> Built:
    """The medium network of Viebke et al. 2019, on grey 29×29 images: 76,040 weights."""
    return _mnist(batch, ((20, 4, 2), (40, 5, 3)), 150)


def mnist_large(batch: int = 2) -> Built:
    """The large network of Viebke et al. 2019, on grey 29×29 images: 383,160 weights.

    Its first pooling has a 1×1 window, as published.
    """
    return _mnist(batch, ((20, 4, 1), (60, 5, 2), (100, 6, 2)), 150)


def _mnist(batch: int, stages: tuple[tuple[int, int, int], ...], hidden: int) -> Built:
    """Stack (maps, kernel, pool window) stages and two fully connected layers, with tanh."""
    layers: list[nn.Module] = []
    channels, side = 1, 29
    for maps, kernel, window in stages:
        layers += [nn.Conv2d(channels, maps, kernel), nn.Tanh(), nn.MaxPool2d(window)]
        channels, side = maps, (side - kernel + 1) // window
    layers += [nn.Flatten(), nn.Linear(channels * side * side, hidden), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(hidden, 10)), (torch.zeros(batch, 1, 29, 29),)


class UNet(nn.Module):  # type: ignore[misc]
    """Contracting and expanding path of Ronneberger et al. 2015, figure 1.

    Channels 64, 128, 256, 512, 1024 and 2×2 up-convolutions as published, no batch normalisation,
    dropout 0.5 after the two deepest levels. Convolutions are padded by 1, so that the output is
    as large as the input; the paper crops instead, which changes no parameter.
    """

    def __init__(self, inputs: int, classes: int, width: int) -> None:
        super().__init__()
        widths = [width << level for level in range(5)]
        self.down = nn.ModuleList(
            _double(a, b) for a, b in zip([inputs, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1])
        )
        self.merge = nn.ModuleList(_double(2 * w, w) for w in reversed(widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, class, height, width] of images [batch, channel, height, width]."""
        kept: list[torch.Tensor] = []
        for level, convolutions in enumerate(self.down):
            x = convolutions(self.pool(x) if level else x)
            x = self.drop(x) if level >= 3 else x
            kept.append(x)
        kept.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([kept.pop(), up(x)], dim=1))
        return self.head(x)


def _double(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(inplace=True),
    )  # fmt: skip


def unet(
    batch: int = 2, image: int = 512, inputs: int = 1, classes: int = 2, width: int = 64
) -> Built:
    """U-Net for grey 512×512 images and two classes for each pixel: 31,030,658 parameters."""
    return UNet(inputs, classes, width), (torch.zeros(batch, inputs, image, image),)


CRITEO_KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Distinct values of each categorical feature of the Criteo Kaggle display-advertising data."""


class DLRM(nn.Module):  # type: ignore[misc]
    """Deep learning recommendation model of Naumov et al. 2019, section 2.

    A bottom perceptron on the dense features, one embedding table for each categorical feature
    with one value a sample, dot products of all pairs, a top perceptron to one logit.
    """

    def __init__(self, dense: int, tables: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.bottom = _perceptron(dense, 512, 256, 64, width)
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for rows in tables)
        vectors = len(tables) + 1
        self.top = _perceptron(width + vectors * (vectors - 1) // 2, 512, 256, 1)[:-1]
        row, column = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("pairs", row * vectors + column, persistent=False)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, 1] of dense [batch, 13] and categorical [batch, 26] features."""
        x = self.bottom(dense)
        looked_up = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        vectors = torch.stack([x, *looked_up], dim=1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, dots[:, self.pairs]], dim=1))


def _perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers)


def dlrm(batch: int = 2) -> Built:
    """DLRM in its Criteo Kaggle configuration: 540,677,217 parameters.

    13 dense and 26 categorical features, vectors of 16, bottom 512-256-64-16, top 512-256-1.
    """
    inputs = (torch.zeros(batch, 13), torch.zeros(batch, 26, dtype=torch.int64))
    return DLRM(13, CRITEO_KAGGLE, 16), inputs


class WordLSTM(nn.Module):  # type: ignore[misc]
    """Word-level language model of Zaremba et al. 2014.

    Dropout acts on everything but the recurrent connections.
    """

    def __init__(self, words: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.drop = nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout, batch_first=True)
        self.decoder = nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, sequence, word] of word numbers [batch, sequence]."""
        y, _ = self.lstm(self.drop(self.embedding(words)))
        return self.decoder(self.drop(y))


def lstm_ptb(batch: int = 2, seq: int = 35) -> Built:
    """The medium model of Zaremba et al. 2014 for Penn Treebank: 19,780,400 parameters.

    Two layers of 650, 10,000 words, dropout 0.5. PyTorch's LSTM has two bias vectors where one
    would do, so 5,200 parameters more than the equations of the paper.
    """
    return WordLSTM(10_000, 650, 2, 0.5), (torch.zeros(batch, seq, dtype=torch.int64),)
