"""Small networks as people write them by hand, one function each: a module and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

Network = Callable[[], tuple[nn.Module, Any]]
NETWORKS: dict[str, Network] = {}


class Of(nn.Module):
    """A module of some parts, and a function of these and the inputs."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module | torch.Tensor) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, *args: Any) -> Any:
        return self.run(self, *args)


def network(make: Network) -> Network:
    NETWORKS[make.__name__.strip("_")] = make
    return make


def images(channels: int = 3, side: int = 16) -> torch.Tensor:
    return torch.zeros(2, channels, side, side)


def rows(*shape: int) -> torch.Tensor:
    return torch.zeros(2, *shape)


def words(length: int = 12) -> torch.Tensor:
    return torch.zeros(2, length, dtype=torch.long)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


@network
def gan() -> Any:
    generator = nn.Sequential(
        nn.ConvTranspose2d(8, 16, 4), nn.BatchNorm2d(16), nn.ReLU(True),
        nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    critic = nn.Sequential(
        nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Flatten(), nn.Linear(128, 1)
    )

    def run(net: Any, noise: Any, real: Any) -> Any:
        fake = net.generator(noise)
        one, none = net.critic(real), net.critic(fake.detach())
        bce = F.binary_cross_entropy_with_logits
        loss = bce(one, torch.ones_like(one)) + bce(none, torch.zeros_like(none))
        return loss + F.softplus(-net.critic(fake)).mean()

    return Of(run, generator=generator, critic=critic), (rows(8, 1, 1), images(3, 8))


@network
def vae() -> Any:
    def run(net: Any, x: Any) -> Any:
        mean, spread = net.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(spread) * torch.exp(0.5 * spread)
        kl = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
        y = torch.sigmoid(net.decoder(z))
        return F.binary_cross_entropy(y, x.sigmoid(), reduction="sum") + kl

    return Of(run, encoder=nn.Linear(32, 16), decoder=nn.Linear(8, 32)), rows(32)


@network
def unet() -> Any:
    def run(net: Any, x: Any) -> Any:
        a = F.relu(net.first(x))
        b = F.relu(net.down(F.max_pool2d(a, 2)))
        return net.last(torch.cat([F.interpolate(net.up(b), size=a.shape[2:]), a], 1))

    parts = {"first": nn.Conv2d(3, 8, 3, padding=1), "down": nn.Conv2d(8, 16, 3, padding=1)}
    up, last = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 4, 1)
    return Of(run, **parts, up=up, last=last), images()


@network
def wavenet() -> Any:
    def run(net: Any, x: Any) -> Any:
        for gate, mix in zip(net.gates, net.mixes, strict=True):
            y = F.glu(gate(F.pad(x, (2, 0))), 1)
            x = x + mix(y)
        return net.out(x.mean(-1))

    gates = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2) for _ in range(2))
    mixes = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(2))
    return Of(run, gates=gates, mixes=mixes, out=nn.Linear(8, 5)), rows(8, 20)


@network
def volumes() -> Any:
    net = nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), nn.InstanceNorm3d(4, affine=True), nn.PReLU(4),
        nn.AvgPool3d(2), nn.Conv3d(4, 8, 3), nn.ELU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip
    return net, rows(1, 8, 8, 8)


@network
def lstm_cell() -> Any:
    def run(net: Any, x: Any) -> Any:
        h = c = x.new_zeros(x.shape[0], 16)
        for step in range(3):
            h, c = net.cell(x[:, step], (h, c))
        return net.out(h)

    return Of(run, cell=nn.LSTMCell(8, 16), out=nn.Linear(16, 4)), rows(3, 8)


@network
def gru_cell() -> Any:
    def run(net: Any, x: Any) -> Any:
        h = x.new_zeros(x.shape[0], 16)
        for step in range(3):
            h = net.cell(x[:, step], h)
        return net.out(h)

    return Of(run, cell=nn.GRUCell(8, 16), out=nn.Linear(16, 4)), rows(3, 8)


@network
def rnn_cell() -> Any:
    def run(net: Any, x: Any) -> Any:
        h = x.new_zeros(x.shape[0], 16)
        for step in range(3):
            h = net.cell(x[:, step], h)
        return net.out(h)

    return Of(run, cell=nn.RNNCell(8, 16), out=nn.Linear(16, 4)), rows(3, 8)


@network
def transformer() -> Any:
    def run(net: Any, source: Any, target: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        y = net.core(net.table(source), net.table(target), tgt_mask=mask)
        return F.linear(y, net.table.weight)

    core = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)
    return Of(run, core=core, table=nn.Embedding(50, 32)), (words(), words())


@network
def attention_with_weights() -> Any:
    def run(net: Any, x: Any, padding: Any) -> Any:
        y, seen = net.core(x, x, x, key_padding_mask=padding, need_weights=True)
        return net.out(y.mean(1)).square().mean() + seen.mean()

    core = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
    padding = torch.zeros(2, 12, dtype=torch.bool)
    return Of(run, core=core, out=nn.Linear(32, 4)), (rows(12, 32), padding)


@network
def attention_written_out() -> Any:
    def run(net: Any, x: Any) -> Any:
        b, n, _ = x.shape
        q, k, v = net.qkv(x).view(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / 8**0.5
        distance = torch.arange(n)[None] - torch.arange(n)[:, None] + n - 1
        scores = scores + net.bias[distance].permute(2, 0, 1)
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
        y = F.dropout(scores.softmax(-1), 0.1) @ v
        return net.out(y.transpose(1, 2).reshape(b, n, 32))

    parts = {"qkv": nn.Linear(32, 96), "out": nn.Linear(32, 6)}
    return Of(run, **parts, bias=weight(63, 4)), rows(12, 32)


@network
def rotary_by_complex_numbers() -> Any:
    def turn(x: Any, turns: Any) -> Any:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(-2).type_as(x)

    def run(net: Any, x: Any) -> Any:
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, 4, 8) for t in net.qkv(x).chunk(3, -1))
        angles = torch.outer(torch.arange(n).float(), 1e4 ** -torch.arange(0, 1, 0.25))
        turns = torch.polar(torch.ones_like(angles), angles)[:, None]
        q, k, v = (t.transpose(1, 2) for t in (turn(q, turns), turn(k, turns), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(b, n, 32)
        return net.out(y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * net.scale)

    parts = {"qkv": nn.Linear(32, 96, bias=False), "out": nn.Linear(32, 6), "scale": weight(32)}
    return Of(run, **parts), rows(12, 32)


@network
def experts_by_mask() -> Any:
    def run(net: Any, x: Any) -> Any:
        x = x.flatten(0, 1)
        weights, chosen = net.route(x).softmax(-1).topk(2, -1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(net.experts):
            token, slot = torch.where(chosen == i)
            y.index_add_(0, token, expert(x[token]) * weights[token, slot, None])
        return net.out(y)

    experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
    return Of(run, experts=experts, route=nn.Linear(16, 4), out=nn.Linear(16, 5)), rows(12, 16)


@network
def experts_dense() -> Any:
    def run(net: Any, x: Any) -> Any:
        scores = net.route(x)
        best, chosen = scores.topk(2, -1)
        gates = torch.zeros_like(scores).scatter(-1, chosen, best.softmax(-1))
        y = torch.einsum("bni,eio->bneo", x, net.weights)
        return net.out((F.silu(y) * gates[..., None]).sum(2))

    parts = {"route": nn.Linear(16, 4), "out": nn.Linear(16, 5), "weights": weight(4, 16, 16)}
    return Of(run, **parts), rows(12, 16)


@network
def messages() -> Any:
    def run(net: Any, x: Any, source: Any, target: Any) -> Any:
        sent = F.relu(net.message(torch.cat([x[source], x.index_select(0, target)], -1)))
        summed = torch.zeros_like(x).index_add(0, target, sent)
        mean = torch.zeros_like(x).scatter_reduce(
            0, target[:, None].expand_as(sent), sent, "mean", include_self=False
        )
        most = torch.zeros_like(x).scatter_reduce(
            0, target[:, None].expand_as(sent), sent, "amax", include_self=False
        )
        return net.out(torch.cat([summed, mean, most], -1))

    ends = torch.zeros(2, dtype=torch.long)
    return Of(run, message=nn.Linear(16, 8), out=nn.Linear(24, 3)), (rows(8), ends, ends)


@network
def state_space() -> Any:
    def run(net: Any, x: Any) -> Any:
        u, gate = net.into(x).chunk(2, -1)
        decay = -F.softplus(net.rate(x))
        total = torch.cumsum(decay, 1)
        state = torch.cumsum(u * torch.exp(-total), 1) * total.exp()
        return net.out(state * F.silu(gate) + torch.cumprod(torch.sigmoid(u), 1))

    parts = {"into": nn.Linear(16, 32), "rate": nn.Linear(16, 16), "out": nn.Linear(16, 4)}
    return Of(run, **parts), rows(12, 16)


@network
def fourier() -> Any:
    def run(net: Any, x: Any) -> Any:
        spectrum = torch.fft.rfft2(x.float(), norm="ortho")
        spectrum = spectrum * torch.view_as_complex(net.filter.float())
        y = torch.fft.irfft2(spectrum, s=x.shape[-2:], norm="ortho").type_as(x)
        return net.out((y + net.mix(x)).mean((2, 3)))

    parts = {"filter": weight(4, 16, 9, 2), "mix": nn.Conv2d(4, 4, 1), "out": nn.Linear(4, 3)}
    return Of(run, **parts), images(4)


@network
def fourier_mixing() -> Any:
    def run(net: Any, x: Any) -> Any:
        y = torch.fft.fft(torch.fft.fft(x.float(), dim=-1), dim=-2).real
        return net.out(net.norm(x + y.type_as(x)))

    return Of(run, norm=nn.LayerNorm(16), out=nn.Linear(16, 4)), rows(8, 16)


@network
def spatial_transformer() -> Any:
    def run(net: Any, x: Any) -> Any:
        theta = net.locate(F.adaptive_avg_pool2d(x, 2).flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return net.out(F.grid_sample(x, grid, align_corners=False).flatten(1))

    return Of(run, locate=nn.Linear(12, 6), out=nn.Linear(768, 4)), images()


@network
def super_resolution() -> Any:
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.PReLU(), nn.PixelShuffle(2), nn.Conv2d(4, 4, 3),
        nn.PixelUnshuffle(2), nn.ChannelShuffle(2), nn.Conv2d(16, 4, 1),
    )  # fmt: skip
    return net, images()
