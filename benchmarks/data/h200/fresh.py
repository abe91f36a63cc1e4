"""Networks written by hand that nothing was looked at for: the last judge.

Each function returns a module and its inputs; a module that returns a number has its own loss.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Block(nn.Module):
    """A residual block with group norms and weighed channels."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        self.a = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.n1, self.n2 = nn.GroupNorm(8, cout), nn.GroupNorm(8, cout)
        self.se = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(cout, cout // 8, 1), nn.SiLU(),
            nn.Conv2d(cout // 8, cout, 1), nn.Sigmoid(),
        )  # fmt: skip
        self.skip = nn.Conv2d(cin, cout, 1, stride) if stride > 1 or cin != cout else nn.Identity()

    def forward(self, x):
        y = self.n2(self.b(F.silu(self.n1(self.a(x)))))
        return F.silu(y * self.se(y) + self.skip(x))


def small_images(batch=256):
    layers = [nn.Conv2d(3, 48, 3, 1, 1)]
    for cin, cout, stride in ((48, 48, 1), (48, 96, 2), (96, 96, 1), (96, 192, 2), (192, 192, 1)):
        layers.append(Block(cin, cout, stride))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 100)]
    return nn.Sequential(*layers), torch.randn(batch, 3, 32, 32)


class Layer(nn.Module):
    """A decoder layer with attention written out."""

    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )
        self.register_buffer("mask", torch.ones(length, length).tril().bool()[None, None])

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.n1(x)).split(c, 2)
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in (q, k, v))
        score = q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5
        score = score.masked_fill(~self.mask[..., :t, :t], float("-inf")).softmax(-1)
        y = (F.dropout(score, 0.1, self.training) @ v).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(y)
        return x + self.mlp(self.n2(x))


class Characters(nn.Module):
    """Predicts the next of 96 characters."""

    def __init__(self, width=384, layers=6, length=384):
        super().__init__()
        self.token, self.place = nn.Embedding(96, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*[Layer(width, 6, length) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 96, bias=False)

    def forward(self, tokens):
        at = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.layers(self.token(tokens) + self.place(at))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, 96), tokens.view(-1))


def characters(batch=32):
    return Characters(), torch.randint(0, 96, (batch, 384))


class Variational(nn.Module):
    """Compresses images to 128 numbers and back."""

    def __init__(self):
        super().__init__()
        widths = (3, 32, 64, 128, 256)
        down, up = [], []
        for a, b in pairwise(widths):
            down += [nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
        for a, b in zip(widths[:0:-1], (*widths[-2:0:-1], 32), strict=True):
            up += [nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.ReLU()]
        self.down, self.up = nn.Sequential(*down), nn.Sequential(*up, nn.Conv2d(32, 3, 3, 1, 1))
        self.mean, self.spread = nn.Linear(4096, 128), nn.Linear(4096, 128)
        self.open = nn.Linear(128, 4096)

    def forward(self, x):
        y = self.down(x).flatten(1)
        mean, spread = self.mean(y), self.spread(y)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        back = torch.tanh(self.up(self.open(z).view(-1, 256, 4, 4)))
        kl = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()
        return F.mse_loss(back, x) + 0.01 * kl


def variational(batch=128):
    return Variational(), torch.randn(batch, 3, 64, 64)


class Tagger(nn.Module):
    """Names the part of speech of every word."""

    def __init__(self, words=20000, width=300, tags=48):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, 256, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(512, tags)

    def forward(self, words, tags):
        y, _ = self.lstm(self.words(words))
        return F.cross_entropy(self.head(y).flatten(0, 1), tags.flatten())


def tagger(batch=64):
    return Tagger(), (torch.randint(0, 20000, (batch, 60)), torch.randint(0, 48, (batch, 60)))


class Points(nn.Module):
    """Classifies clouds of points by their largest features."""

    def __init__(self):
        super().__init__()
        layers, cin = [], 3
        for cout in (64, 64, 128, 256, 1024):
            layers += [nn.Conv1d(cin, cout, 1), nn.BatchNorm1d(cout), nn.ReLU(inplace=True)]
            cin = cout
        self.each = nn.Sequential(*layers)
        self.all = nn.Sequential(
            nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.3),
            nn.Linear(512, 40),
        )  # fmt: skip

    def forward(self, x):
        return self.all(self.each(x).max(2).values)


def points(batch=32):
    return Points(), torch.randn(batch, 3, 2048)


class Scan(nn.Module):
    """Marks organs in scans: two levels of 3-D convolutions with a skip."""

    def __init__(self):
        super().__init__()

        def pair(a, b):
            return nn.Sequential(
                nn.Conv3d(a, b, 3, padding=1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU(),
                nn.Conv3d(b, b, 3, padding=1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU(),
            )  # fmt: skip

        self.one, self.two, self.three = pair(1, 16), pair(16, 32), pair(32, 64)
        self.up2, self.up1 = nn.ConvTranspose3d(64, 32, 2, 2), nn.ConvTranspose3d(32, 16, 2, 2)
        self.back2, self.back1, self.head = pair(64, 32), pair(32, 16), nn.Conv3d(16, 4, 1)

    def forward(self, x, wanted):
        a = self.one(x)
        b = self.two(F.max_pool3d(a, 2))
        c = self.three(F.max_pool3d(b, 2))
        b = self.back2(torch.cat([self.up2(c), b], 1))
        a = self.back1(torch.cat([self.up1(b), a], 1))
        return F.cross_entropy(self.head(a), wanted)


def scan(batch=4):
    return Scan(), (torch.randn(batch, 1, 64, 64, 64), torch.randint(0, 4, (batch, 64, 64, 64)))


class Adverts(nn.Module):
    """Rates adverts: bags of ids, crossed with each other, and a wide network."""

    def __init__(self, fields=12, rows=50000, width=32):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(fields))
        self.dense = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(width + (fields + 1) ** 2, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
            nn.Linear(256, 1),
        )  # fmt: skip

    def forward(self, numbers, ids, clicked):
        x = self.dense(numbers)
        rows = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        every = torch.stack([x, *rows], 1)
        crossed = torch.bmm(every, every.transpose(1, 2)).flatten(1)
        return F.binary_cross_entropy_with_logits(
            self.top(torch.cat([x, crossed], 1)).squeeze(1), clicked
        )


def adverts(batch=2048):
    return Adverts(), (
        torch.randn(batch, 16), torch.randint(0, 50000, (batch, 12, 4)), torch.rand(batch),
    )  # fmt: skip


class Routed(nn.Module):
    """Sends every token through two of eight networks."""

    def __init__(self, width=512, experts=8):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(experts)
        )

    def forward(self, x):
        y = self.norm(x).flatten(0, 1)
        weight, chosen = self.gate(y).softmax(-1).topk(2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        total = torch.zeros_like(y)
        share = len(y) * 2 // len(self.experts)
        order = chosen.flatten().argsort().view(len(self.experts), share)
        flat = weight.flatten()
        for expert, rows in zip(self.experts, order, strict=True):
            out = expert(y[rows // 2]) * flat[rows, None].to(y.dtype)
            total = total.index_add(0, rows // 2, out.to(total.dtype))
        return x + total.view_as(x)


class Mixture(nn.Module):
    """Layers of attention and routed networks."""

    def __init__(self, width=512, layers=4):
        super().__init__()
        self.stem = nn.Linear(80, width)
        self.attention = nn.ModuleList(
            nn.MultiheadAttention(width, 8, batch_first=True) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.routed = nn.ModuleList(Routed(width) for _ in range(layers))
        self.head = nn.Linear(width, 32)

    def forward(self, x):
        x = self.stem(x)
        for attention, norm, routed in zip(self.attention, self.norms, self.routed, strict=True):
            y = norm(x)
            x = routed(x + attention(y, y, y, need_weights=False)[0])
        return self.head(x.mean(1))


def mixture(batch=16):
    return Mixture(), torch.randn(batch, 256, 80)


class Conformer(nn.Module):
    """A layer for speech: half networks around attention and a convolution."""

    def __init__(self, width=256):
        super().__init__()
        self.halves = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1),
                nn.Linear(4 * width, width), nn.Dropout(0.1),
            )
            for _ in range(2)
        )  # fmt: skip
        self.norm, self.mha = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.one = nn.Conv1d(width, 2 * width, 1)
        self.deep = nn.Conv1d(width, width, 31, padding=15, groups=width)
        self.batch, self.two = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x):
        x = x + 0.5 * self.halves[0](x)
        y = self.norm(x)
        x = x + self.mha(y, y, y, need_weights=False)[0]
        y = F.glu(self.one(self.before(x).transpose(1, 2)), 1)
        y = self.two(F.silu(self.batch(self.deep(y))))
        x = x + y.transpose(1, 2)
        return self.after(x + 0.5 * self.halves[1](x))


class Speech(nn.Module):
    """Listens: two strided convolutions, conformer layers, a letter at each position."""

    def __init__(self, width=256, layers=6):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU()
        )
        self.into = nn.Linear(64 * 20, width)
        self.layers = nn.Sequential(*[Conformer(width) for _ in range(layers)])
        self.head = nn.Linear(width, 32)

    def forward(self, x):
        y = self.stem(x[:, None])
        y = self.into(y.transpose(1, 2).flatten(2))
        return self.head(self.layers(y)).mean(1)


def speech(batch=16):
    return Speech(), torch.randn(batch, 800, 80)


class Atrous(nn.Module):
    """Marks pixels: dilated convolutions in a pyramid over a small backbone."""

    def __init__(self):
        super().__init__()

        def unit(a, b, k=3, stride=1, gap=1):
            return nn.Sequential(
                nn.Conv2d(a, b, k, stride, gap * (k // 2), gap, bias=False), nn.BatchNorm2d(b),
                nn.ReLU(inplace=True),
            )  # fmt: skip

        self.back = nn.Sequential(
            unit(3, 32, 3, 2), unit(32, 64, 3, 2), unit(64, 128, 3, 2), unit(128, 256),
            unit(256, 256, 3, 1, 2), unit(256, 256, 3, 1, 4),
        )  # fmt: skip
        wide = [unit(256, 128, 3, 1, gap) for gap in (6, 12)]
        self.arms = nn.ModuleList([unit(256, 128, 1), *wide])
        self.head = nn.Sequential(unit(384, 128), nn.Conv2d(128, 19, 1))

    def forward(self, x, wanted):
        y = self.back(x)
        y = self.head(torch.cat([arm(y) for arm in self.arms], 1))
        y = F.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=False)
        return F.cross_entropy(y, wanted)


def atrous(batch=8):
    return Atrous(), (torch.randn(batch, 3, 256, 256), torch.randint(0, 19, (batch, 256, 256)))


class Patches(nn.Module):
    """A vision transformer with a stem of convolutions, scaled layers and relative positions."""

    def __init__(self, width=320, layers=8, heads=5):
        super().__init__()
        self.heads = heads
        self.stem = nn.Sequential(
            nn.Conv2d(3, 80, 3, 2, 1), nn.BatchNorm2d(80), nn.GELU(), nn.Conv2d(80, 160, 3, 2, 1),
            nn.BatchNorm2d(160), nn.GELU(), nn.Conv2d(160, width, 4, 4),
        )  # fmt: skip
        self.table = nn.Parameter(torch.zeros(heads, 196, 196))
        self.layers = nn.ModuleList()
        for _ in range(layers):
            one = nn.Module()
            one.n1, one.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            one.qkv, one.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            one.up, one.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            one.g1 = nn.Parameter(1e-4 * torch.ones(width))
            one.g2 = nn.Parameter(1e-4 * torch.ones(width))
            self.layers.append(one)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        b, n, c = x.shape
        for one in self.layers:
            q, k, v = one.qkv(one.n1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.table[None].to(q.dtype))
            x = x + one.g1 * one.out(y.transpose(1, 2).reshape(b, n, c))
            x = x + one.g2 * one.down(F.gelu(one.up(one.n2(x))))
        return self.head(self.norm(x).mean(1))


def patches(batch=64):
    return Patches(), torch.randn(batch, 3, 224, 224)
