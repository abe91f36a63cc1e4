"""More networks written by hand, of other kinds than those in `handmade.py`: a judge's own.

Each function returns a module and its inputs; a module that returns a number has its own loss.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Root(nn.Module):
    """Root mean square norm, written out."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return y.type_as(x) * self.weight


def turned(x, cos, sin):
    """Rotate pairs of channels by their position."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Decoder(nn.Module):
    """A block of a modern language model: rotary positions, shared heads, a gated network."""

    def __init__(self, width, heads, shared):
        super().__init__()
        self.heads, self.shared, self.head = heads, shared, width // heads
        self.one, self.two = Root(width), Root(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * shared * self.head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 3 * width, bias=False)
        self.up = nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x, cos, sin):
        b, s, w = x.shape
        y = self.one(x)
        q = self.q(y).view(b, s, self.heads, self.head).transpose(1, 2)
        k, v = self.kv(y).view(b, s, 2, self.shared, self.head).permute(2, 0, 3, 1, 4)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        times = self.heads // self.shared
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, w))
        y = self.two(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Language(nn.Module):
    """A language model as people write it after Llama."""

    def __init__(self, vocabulary=16384, width=768, layers=8, heads=12, shared=4, length=512):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Decoder(width, heads, shared) for _ in range(layers))
        self.norm = Root(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        half = width // heads // 2
        angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(half) / half)
        self.register_buffer("cos", angle.cos().repeat(1, 2))
        self.register_buffer("sin", angle.sin().repeat(1, 2))

    def forward(self, tokens):
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def language(batch=8):
    return Language(), torch.randint(0, 16384, (batch, 512))


class Translator(nn.Module):
    """PyTorch's own encoder and decoder."""

    def __init__(self, vocabulary=12000, width=512):
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.core = nn.Transformer(width, 8, 4, 4, 2048, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", torch.full((64, 64), float("-inf")).triu(1))

    def forward(self, a, b):
        y = self.core(self.source(a) * math.sqrt(512), self.target(b), tgt_mask=self.mask)
        return F.cross_entropy(self.head(y).flatten(0, 1), b.flatten())


def translator(batch=32):
    return Translator(), (
        torch.randint(0, 12000, (batch, 96)),
        torch.randint(0, 12000, (batch, 64)),
    )


class Reviews(nn.Module):
    """Classifies text with a GRU that reads both ways."""

    def __init__(self, vocabulary=30000, width=256):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.rnn = nn.GRU(width, 384, num_layers=2, bidirectional=True, batch_first=True,
                          dropout=0.2)  # fmt: skip
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(768, 5))

    def forward(self, tokens):
        x, _ = self.rnn(self.embedding(tokens))
        return self.head(x.max(1).values)


def reviews(batch=64):
    return Reviews(), torch.randint(0, 30000, (batch, 200))


def volume(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv3d(cin, cout, 3, stride=stride, padding=1, bias=False), nn.BatchNorm3d(cout),
        nn.ReLU(inplace=True),
    )  # fmt: skip


class Clips(nn.Module):
    """Classifies short clips with convolutions over space and time."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            volume(3, 32), nn.MaxPool3d((1, 2, 2)), volume(32, 64), nn.MaxPool3d(2),
            volume(64, 128), volume(128, 128), nn.MaxPool3d(2), volume(128, 256), volume(256, 256),
            nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(256, 101),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x)


def clips(batch=8):
    return Clips(), torch.randn(batch, 3, 16, 112, 112)


class Pairs(nn.Module):
    """Learns to match images and captions: two towers, one table of likenesses."""

    def __init__(self, width=384):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, stride=16)
        self.place = nn.Parameter(torch.randn(1, 196, width) * 0.02)
        self.token = nn.Embedding(20000, width)
        self.order = nn.Parameter(torch.randn(1, 77, width) * 0.02)
        self.image = nn.ModuleList(self.layer(width) for _ in range(6))
        self.text = nn.ModuleList(self.layer(width) for _ in range(4))
        self.scale = nn.Parameter(torch.tensor(2.6))
        self.norm = nn.LayerNorm(width)

    @staticmethod
    def layer(width):
        return nn.TransformerEncoderLayer(
            width, 6, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, image, text):
        x = self.patch(image).flatten(2).transpose(1, 2) + self.place
        for layer in self.image:
            x = layer(x)
        y = self.token(text) + self.order
        for layer in self.text:
            y = layer(y)
        x = F.normalize(self.norm(x.mean(1)), dim=-1)
        y = F.normalize(self.norm(y[:, -1]), dim=-1)
        logits = self.scale.exp() * x @ y.t()
        at = torch.arange(len(x), device=x.device)
        return (F.cross_entropy(logits, at) + F.cross_entropy(logits.t(), at)) / 2


def pairs(batch=64):
    return Pairs(), (torch.randn(batch, 3, 224, 224), torch.randint(0, 20000, (batch, 77)))


class Field(nn.Module):
    """Colours and densities of points in space, from sines of their coordinates."""

    def __init__(self, width=256, bands=10):
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(bands))
        wide = 3 + 6 * bands
        self.first = nn.ModuleList(nn.Linear(wide if i == 0 else width, width) for i in range(4))
        self.second = nn.ModuleList(
            nn.Linear(width + wide if i == 0 else width, width) for i in range(4)
        )
        self.density, self.colour = nn.Linear(width, 1), nn.Linear(width, 3)

    def forward(self, points, wanted):
        angle = (points[..., None] * self.bands).flatten(-2)
        x = y = torch.cat([points, angle.sin(), angle.cos()], -1)
        for layer in self.first:
            y = F.relu(layer(y))
        y = torch.cat([y, x], -1)
        for layer in self.second:
            y = F.relu(layer(y))
        weight = 1 - torch.exp(-F.softplus(self.density(y)))
        weight = weight * torch.cumprod(1 - weight + 1e-6, 1)
        return F.mse_loss((weight * torch.sigmoid(self.colour(y))).sum(1), wanted)


def field(batch=1024):
    return Field(), (torch.randn(batch, 64, 3), torch.rand(batch, 3))


class Sharpen(nn.Module):
    """Doubles the resolution of images: residual blocks without norms, then a pixel shuffle."""

    def __init__(self, width=64, blocks=16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.PReLU(),
                nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(blocks)
        )  # fmt: skip
        self.grow = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2),
            nn.Conv2d(width, 3, 3, padding=1),
        )  # fmt: skip

    def forward(self, x, wanted):
        y = first = self.stem(x)
        for block in self.blocks:
            y = y + 0.1 * block(y)
        return F.l1_loss(self.grow(y + first), wanted)


def sharpen(batch=16):
    return Sharpen(), (torch.randn(batch, 3, 64, 64), torch.randn(batch, 3, 128, 128))


class Experts(nn.Module):
    """Feed-forward networks of which a gate mixes all, token by token."""

    def __init__(self, width=512, experts=8, layers=4):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(layers):
            layer = nn.Module()
            layer.norm, layer.gate = nn.LayerNorm(width), nn.Linear(width, experts)
            layer.one = nn.Parameter(torch.randn(experts, width, width) * 0.02)
            layer.two = nn.Parameter(torch.randn(experts, width, width) * 0.02)
            self.layers.append(layer)
        self.head = nn.Linear(width, 256)

    def forward(self, x):
        for layer in self.layers:
            y = layer.norm(x)
            share = layer.gate(y).softmax(-1)
            h = F.gelu(torch.einsum("bsw,ewv->besv", y, layer.one))
            h = torch.einsum("besv,evw->besw", h, layer.two)
            x = x + torch.einsum("besw,bse->bsw", h, share)
        return self.head(x.mean(1))


def experts(batch=32):
    return Experts(), torch.randn(batch, 128, 512)


class Graphs(nn.Module):
    """Passes messages along the edges of a graph; one sample is a graph of 512 nodes."""

    def __init__(self, width=128, layers=4):
        super().__init__()
        self.stem = nn.Linear(32, width)
        self.message = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.update = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, nodes, start, end):
        x = self.stem(nodes)
        for message, update, norm in zip(self.message, self.update, self.norm, strict=True):
            shape = (*start.shape, x.shape[-1])
            a = x.gather(1, start[..., None].expand(shape))
            b = x.gather(1, end[..., None].expand(shape))
            sent = F.relu(message(torch.cat([a, b], -1)))
            got = torch.zeros_like(x, dtype=sent.dtype).scatter_add(
                1, end[..., None].expand(shape), sent
            )
            x = norm(x + F.relu(update(torch.cat([x, got], -1))))
        return self.head(x.mean(1))


def graphs(batch=16):
    edges = (batch, 4096)
    return Graphs(), (
        torch.randn(batch, 512, 32), torch.randint(0, 512, edges), torch.randint(0, 512, edges),
    )  # fmt: skip


class Waves(nn.Module):
    """A causal network over audio: padded, dilated convolutions with gates and skips."""

    def __init__(self, width=128, layers=12):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 1)
        self.wide = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 2, dilation=2 ** (i % 6)) for i in range(layers)
        )
        self.skip = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.keep = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 256, 1))

    def forward(self, x, wanted):
        x = self.stem(x)
        total = 0
        for i, wide in enumerate(self.wide):
            y = F.glu(wide(F.pad(x, (2 ** (i % 6), 0))), 1)
            total = total + self.skip[i](y)
            x = x + self.keep[i](y)
        return F.cross_entropy(self.head(total), wanted)


def waves(batch=8):
    return Waves(), (torch.randn(batch, 1, 8192), torch.randint(0, 256, (batch, 8192)))


class Squeeze(nn.Module):
    """A residual block with a 5×5 depthwise convolution and channels weighed by their means."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        wide = 3 * cin
        self.body = nn.Sequential(
            nn.Conv2d(cin, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Mish(),
            nn.Conv2d(wide, wide, 5, stride=stride, padding=2, groups=wide, bias=False),
            nn.BatchNorm2d(wide), nn.Mish(),
        )  # fmt: skip
        self.one, self.two = nn.Linear(wide, wide // 8), nn.Linear(wide // 8, wide)
        self.out = nn.Sequential(nn.Conv2d(wide, cout, 1, bias=False), nn.BatchNorm2d(cout))
        self.same = stride == 1 and cin == cout

    def forward(self, x):
        y = self.body(x)
        weight = torch.sigmoid(self.two(F.relu(self.one(y.mean((2, 3))))))
        y = self.out(y * weight[:, :, None, None])
        return x + y if self.same else y


def squeeze(batch=64):
    """A small convolutional network of one's own."""
    layers = [nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.Mish()]
    cin = 24
    for cout, stride in ((24, 1), (40, 2), (40, 1), (80, 2), (80, 1), (112, 1), (160, 2), (160, 1)):
        layers.append(Squeeze(cin, cout, stride))
        cin = cout
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 200)]
    return nn.Sequential(*layers), torch.randn(batch, 3, 192, 192)


class Steps(nn.Module):
    """Forecasts a series with cells in a loop of Python."""

    def __init__(self, width=256):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, width), nn.Linear(width, 8)

    def forward(self, x):
        h = x.new_zeros(len(x), self.cell.hidden_size)
        c = torch.zeros_like(h)
        loss = 0.0
        for t in range(x.shape[1] - 1):
            h, c = self.cell(x[:, t], (h, c))
            loss = loss + F.smooth_l1_loss(self.head(h), x[:, t + 1])
        return loss / x.shape[1]


def steps(batch=256):
    return Steps(), torch.randn(batch, 24, 8)


class Linear(nn.Module):
    """Attention without a softmax over positions: sums of outer products, in a few layers."""

    def __init__(self, width=512, heads=8, layers=6):
        super().__init__()
        self.heads = heads
        self.stem = nn.Linear(64, width)
        self.mix = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        x = self.stem(x)
        for mix, out, norm in zip(self.mix, self.out, self.norm, strict=True):
            b, s, w = x.shape
            q, k, v = (
                t.view(b, s, self.heads, -1).transpose(1, 2) for t in mix(norm(x)).chunk(3, -1)
            )
            q, k = F.elu(q) + 1, F.elu(k) + 1
            state = torch.einsum("bhsd,bhse->bhde", k, v)
            scale = torch.einsum("bhsd,bhd->bhs", q, k.sum(2))
            y = torch.einsum("bhsd,bhde->bhse", q, state) / (scale[..., None] + 1e-6)
            x = x + out(y.transpose(1, 2).reshape(b, s, w))
        return F.binary_cross_entropy_with_logits(
            self.head(x.mean(1)), torch.ones_like(x[:, :1, 0])
        )


def linear(batch=32):
    return Linear(), torch.randn(batch, 512, 64)


class Taste(nn.Module):
    """Recommends by inner products of two tables and a small network."""

    def __init__(self, users=200_000, items=50_000, width=128):
        super().__init__()
        self.user, self.item = nn.Embedding(users, width), nn.Embedding(items, width)
        self.bias = nn.Embedding(items, 1)
        self.deep = nn.Sequential(
            nn.Linear(2 * width, 512), nn.ReLU(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, user, item, wanted):
        a, b = self.user(user), self.item(item)
        score = (a * b).sum(-1) + self.bias(item).squeeze(-1)
        score = score + self.deep(torch.cat([a, b], -1)).squeeze(-1)
        return F.binary_cross_entropy_with_logits(score, wanted)


def taste(batch=8192):
    return Taste(), (
        torch.randint(0, 200_000, (batch,)), torch.randint(0, 50_000, (batch,)), torch.rand(batch)
    )  # fmt: skip
