"""Small networks around one op each, and splits of that op. Networks are functions by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

Built = tuple[nn.Module, tuple[torch.Tensor, ...], tuple[int, ...]]
CLASSES = 6


def _image_net(op: nn.Module, channels: int = 4, side: int = 9, dims: int = 2) -> Built:
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    x = torch.zeros(1, 3, *(side,) * dims)
    stem = conv(3, channels, 1)
    with torch.no_grad():
        features = op(stem(x)).numel()
    module = nn.Sequential()
    module.add_module("stem", stem)
    module.add_module("op", op)
    module.add_module("flat", nn.Flatten())
    module.add_module("head", nn.Linear(features, CLASSES))
    return module, (x,), (CLASSES,)


OPS: dict[str, Any] = {
    "conv": lambda: nn.Conv2d(4, 6, 3, padding=1),
    "conv_stride": lambda: nn.Conv2d(4, 5, 5, stride=2, padding=2),
    "conv_dilated": lambda: nn.Conv2d(4, 6, 3, dilation=2, padding=1, bias=False),
    "conv_asymmetric": lambda: nn.Conv2d(4, 6, (1, 7), padding=(0, 3)),
    "conv_groups": lambda: nn.Conv2d(4, 12, 3, padding=1, groups=2),
    "conv_depthwise": lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4),
    "conv_same": lambda: nn.Conv2d(4, 6, 3, dilation=2, padding="same"),
    "conv_patches": lambda: nn.Conv2d(4, 6, 3, stride=3),
    "conv_transposed": lambda: nn.ConvTranspose2d(4, 6, 3, 2, padding=1, output_padding=1),
    "conv_up": lambda: nn.ConvTranspose2d(4, 6, 2, stride=2),
    "max_pool": lambda: nn.MaxPool2d(3, 2, padding=1),
    "max_pool_ceil": lambda: nn.MaxPool2d(2, ceil_mode=True),
    "avg_pool": lambda: nn.AvgPool2d(3, 2, padding=1),
    "avg_pool_inside": lambda: nn.AvgPool2d(3, 1, padding=1, count_include_pad=False),
    "avg_pool_ceil": lambda: nn.AvgPool2d(2, 2, ceil_mode=True),
    "adaptive_pool": lambda: nn.AdaptiveAvgPool2d((4, 5)),
    "adaptive_max_pool": lambda: nn.AdaptiveMaxPool2d(4),
    "upsample": lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
    "upsample_nearest": lambda: nn.Upsample((5, 7)),
    "softmax": lambda: nn.Softmax(1),
    "batch_norm": lambda: nn.BatchNorm2d(4),
    "group_norm": lambda: nn.GroupNorm(2, 4),
    "relu": lambda: nn.ReLU(inplace=True),
}
ONE_AXIS = {
    "conv1d": lambda: nn.Conv1d(4, 6, 3, padding=1),
    "conv1d_groups": lambda: nn.Conv1d(4, 6, 3, stride=2, groups=2),
    "max_pool1d": lambda: nn.MaxPool1d(3, 2),
    "avg_pool1d": lambda: nn.AvgPool1d(3, 2, padding=1),
}
THREE_AXES = {
    "conv3d": lambda: nn.Conv3d(4, 6, 3, padding=1),
    "max_pool3d": lambda: nn.MaxPool3d(2),
    "avg_pool3d": lambda: nn.AvgPool3d(3, 1, padding=1),
}


def image_case(name: str) -> Built:
    if name in ONE_AXIS:
        return _image_net(ONE_AXIS[name](), dims=1)
    if name in THREE_AXES:
        return _image_net(THREE_AXES[name](), side=5, dims=3)
    return _image_net(OPS[name]())


def image(name: str) -> Any:
    return partial(image_case, name)


class Dense(nn.Module):
    """Dense layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(10, 8)
        self.drop = nn.Dropout(0.4)
        self.b = nn.Linear(8, 7, bias=False)
        self.c = nn.Linear(7, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(torch.tanh(self.b(self.drop(F.relu(self.a(x))))))


def dense() -> Built:
    return Dense(), (torch.zeros(1, 10),), (CLASSES,)


class Branches(nn.Module):
    """Residual sum, concatenation, views, a mean over the image and a scale that is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 4, 3, padding=1)
        self.c = nn.Conv2d(4, 6, 1)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.head = nn.Linear(10, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.a(x))
        y = self.b(x) * self.scale
        y += x
        z = torch.cat([F.relu(y), self.c(x)], 1)
        return self.head(z.mean([2, 3]))


def branches() -> Built:
    return Branches(), (torch.zeros(1, 3, 8, 8),), (CLASSES,)


class Block(nn.Module):
    """A transformer block on words: embedding, attention with dropout, layer norms, an MLP."""

    def __init__(
        self, width: int = 8, heads: int = 4, length: int = 6, causal: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.words = nn.Embedding(7, width)
        self.places = nn.Parameter(torch.randn(1, length, width) * 0.1)
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attn = Attention(causal)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 7)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places
        b, s, c = x.shape
        q, k, v = (
            t.view(b, s, self.heads, c // self.heads).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).split(c, dim=2)
        )
        y = self.attn(q, k, v).transpose(1, 2).contiguous().view(b, s, c)
        x = x + F.dropout(self.proj(y), 0.1, self.training)
        return self.head(x + self.down(F.gelu(self.up(self.norm2(x)))))


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=0.2 if self.training else 0.0, is_causal=self.causal
        )


def block(causal: bool = True) -> Built:
    return Block(causal=causal), (torch.zeros(1, 6, dtype=torch.int64),), (7, 6)


class Heads(nn.Module):
    """PyTorch's own multi-head attention over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 4, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.attn(x, x, x, need_weights=False)
        return self.head((1.0 - 0.5 * y + x / 2).mean(1))


def heads() -> Built:
    return Heads(), (torch.zeros(1, 6, 8),), (CLASSES,)


class Odd(nn.Module):
    """Functions without a rule of their own: of one result, of several, of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.mix = nn.Parameter(torch.randn(8, 8) / 4)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.einsum("bsi,ij->bsj", self.a(x).flip(1), self.mix)
        y, (h, _) = self.lstm(y.cumsum(1) + x)
        return self.head(y[:, ::2].mean(1) + h[0] + torch.stack([x, y], 1).amax([1, 2]))


def odd() -> Built:
    return Odd(), (torch.zeros(1, 6, 8),), (CLASSES,)


class Refused(nn.Module):
    """One function on a dense layer's output, which no process can run alone."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.a = nn.Linear(8, CLASSES)
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self.a(x))


class Grouped(nn.Module):
    """Attention whose four heads share two of keys and values, behind an RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(8)
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
        self.attn = Shared()
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        b, s, _ = x.shape
        q, k, v = (f(x).view(b, s, -1, 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.head(self.attn(q, k, v).transpose(1, 2).reshape(b, s, 8).mean(1))


class Shared(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def grouped() -> Built:
    return Grouped(), (torch.zeros(1, 6, 8),), (CLASSES,)
