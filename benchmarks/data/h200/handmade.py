"""Networks that no zoo has, as people write them by hand; each returns a module and its inputs."""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


def double(cin, cout):
    """Two convolutions with batch norm."""
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    """Segments an image: down by pooling, up by transposed convolutions, joined level by level."""

    def __init__(self, width=32, classes=21):
        super().__init__()
        widths = [width * 2**i for i in range(5)]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in pairwise(widths))
        self.join = nn.ModuleList(double(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        kept = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for i in reversed(range(4)):
            x = self.join[i](torch.cat([self.up[i](x), kept[i]], 1))
        return self.head(x)


def unet(batch=8):
    return UNet(), torch.randn(batch, 3, 256, 256)


class Speech(nn.Module):
    """Classifies a waveform: one-dimensional convolutions, group norm, gated blocks."""

    def __init__(self, width=256, blocks=8):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 16, stride=8)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.GroupNorm(8, width),
                    "wide": nn.Conv1d(width, 2 * width, 3, padding=2**i, dilation=2**i),
                    "back": nn.Conv1d(width, width, 1),
                }
            )
            for i in range(blocks)
        )
        self.head = nn.Linear(width, 35)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            a, b = block["wide"](block["norm"](x)).chunk(2, 1)
            x = x + block["back"](torch.tanh(a) * torch.sigmoid(b))
        return self.head(x.mean(-1))


def speech(batch=16):
    return Speech(), torch.randn(batch, 1, 16000)


class Recurrent(nn.Module):
    """Predicts the next token with an LSTM."""

    def __init__(self, vocabulary=10000, width=512):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x, _ = self.rnn(self.embedding(tokens))
        logits = self.head(x[:, :-1])
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def recurrent(batch=64):
    return Recurrent(), torch.randint(0, 10000, (batch, 128))


class Encoder(nn.Module):
    """Classifies text with PyTorch's own transformer layers."""

    def __init__(self, vocabulary=20000, width=512, layers=6):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.zeros(1, 256, width))
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 20)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens) + self.place).mean(1))


def encoder(batch=32):
    return Encoder(), torch.randint(0, 20000, (batch, 256))


class Block(nn.Module):
    """Causal attention written out, and a feed-forward network."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = self.mix(self.norms[0](x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        mask = torch.ones(s, s, dtype=torch.bool, device=x.device).tril()
        scores = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(b, s, w))
        return x + self.feed(self.norms[1](x))


class Tiny(nn.Module):
    """A language model from a tutorial."""

    def __init__(self, vocabulary=8192, width=384, layers=6, heads=6, length=256):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        at = torch.arange(tokens.shape[1], device=tokens.device)
        logits = self.head(self.norm(self.blocks(self.token(tokens) + self.place(at))))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def tiny(batch=64):
    return Tiny(), torch.randint(0, 8192, (batch, 256))


class Clicks(nn.Module):
    """Predicts clicks from dense and categorical features."""

    def __init__(self, tables=26, rows=100_000, width=64):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width),
            nn.ReLU(),
        )  # fmt: skip
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + width, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(),
            nn.Linear(512, 2),
        )  # fmt: skip
        at = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("first", at[0])
        self.register_buffer("second", at[1])

    def forward(self, dense, chosen):
        x = self.bottom(dense)
        rows = torch.stack([x, *[t(chosen[:, i]) for i, t in enumerate(self.tables)]], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))[:, self.first, self.second]
        return self.top(torch.cat([x, products], 1))


def clicks(batch=2048):
    return Clicks(), (torch.randn(batch, 13), torch.randint(0, 100_000, (batch, 26)))


class Residual(nn.Module):
    """A block of a diffusion network: group norm, SiLU, two convolutions."""

    def __init__(self, cin, cout):
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(32, cin), nn.SiLU(), nn.Conv2d(cin, cout, 3, padding=1)
        )
        self.time = nn.Linear(256, cout)
        self.second = nn.Sequential(
            nn.GroupNorm(32, cout), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(cout, cout, 3, padding=1)
        )
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, t):
        h = self.first(x) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.second(h)


class Attend(nn.Module):
    """Attention over the pixels of a small image."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.mix, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        n, c, h, w = x.shape
        q, k, v = (
            self.mix(self.norm(x)).reshape(n, 3, c // 64, 64, h * w).transpose(-1, -2).unbind(1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(n, c, h, w))


class Diffusion(nn.Module):
    """Removes noise from small images."""

    def __init__(self, width=128):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Residual(width, width), Residual(width, 2 * width)])
        self.shrink = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.middle, self.attend = Residual(2 * width, 2 * width), Attend(2 * width)
        self.up = nn.ModuleList([Residual(3 * width, width), Residual(2 * width, width)])
        self.grow = nn.Conv2d(width, width, 3, padding=1)
        self.head = nn.Sequential(
            nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1)
        )

    def forward(self, x, t, noise):
        t = self.time(t)
        x = self.stem(x)
        a = self.down[0](x, t)
        small = self.shrink(a)
        b = self.attend(self.middle(self.down[1](small, t), t))
        y = self.up[0](torch.cat([b, small], 1), t)
        y = self.grow(F.interpolate(y, scale_factor=2))
        y = self.up[1](torch.cat([y, a], 1), t)
        return F.mse_loss(self.head(y), noise)


def diffusion(batch=32):
    image = (batch, 3, 32, 32)
    return Diffusion(), (torch.randn(image), torch.randn(batch, 64), torch.randn(image))


class Auto(nn.Module):
    """A variational autoencoder of strided convolutions."""

    def __init__(self, width=64, hidden=256):
        super().__init__()
        widths = [3, width, 2 * width, 4 * width, 8 * width]
        down = [
            nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2))
            for a, b in pairwise(widths)
        ]
        up = [
            nn.Sequential(nn.ConvTranspose2d(b, a, 4, 2, 1), nn.BatchNorm2d(a), nn.ReLU())
            for a, b in pairwise(widths[1:])
        ]
        self.down = nn.Sequential(*down)
        self.code, self.decode = nn.Linear(32768, 2 * hidden), nn.Linear(hidden, 32768)
        self.up = nn.Sequential(*reversed(up), nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Sigmoid())

    def forward(self, x):
        mean, log = self.code(self.down(x).flatten(1)).chunk(2, 1)
        z = mean + torch.exp(0.5 * log) * torch.randn_like(mean)
        y = self.up(self.decode(z).view(len(x), -1, 8, 8))
        apart = -0.5 * (1 + log - mean.pow(2) - log.exp()).sum(1).mean()
        return F.mse_loss(y, x) + 1e-4 * apart


def auto(batch=64):
    return Auto(), torch.randn(batch, 3, 128, 128)


class Mixer(nn.Module):
    """Mixes patches and channels in turn, without attention."""

    def __init__(self, width=512, depth=8, patches=196):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 16, stride=16)
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "across": nn.Sequential(
                    nn.Linear(patches, 256), nn.GELU(), nn.Linear(256, patches)
                ),
                "along": nn.Sequential(
                    nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, width)
                ),
                "one": nn.LayerNorm(width), "two": nn.LayerNorm(width),
            })
            for _ in range(depth)
        )  # fmt: skip
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = x + layer["across"](layer["one"](x).transpose(1, 2)).transpose(1, 2)
            x = x + layer["along"](layer["two"](x))
        return self.head(x.mean(1))


def mixer(batch=64):
    return Mixer(), torch.randn(batch, 3, 224, 224)


def perceptron(batch=1024):
    """A plain stack of layers over a table."""
    widths = [256, 2048, 2048, 2048, 1024, 512]
    layers = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(512, 10)), torch.randn(batch, 256)
