"""More of them: losses, distances, scans, and what else PyTorch offers."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
import torch.utils.checkpoint
from networks import NETWORKS, Of, images, network, rows, weight, words
from torch import nn

__all__ = ["NETWORKS"]


@network
def patches() -> Any:
    def run(net: Any, x: Any) -> Any:
        columns = F.unfold(x, 4, stride=4)
        y = net.mix(columns.transpose(1, 2)).transpose(1, 2)
        return F.l1_loss(F.fold(y, 16, 4, stride=4), x)

    return Of(run, mix=nn.Linear(48, 48)), images()


@network
def resized() -> Any:
    def run(net: Any, x: Any) -> Any:
        y = net.first(x)
        for mode in ("nearest", "nearest-exact", "area", "bilinear", "bicubic"):
            y = y + F.interpolate(F.interpolate(y, scale_factor=0.5, mode=mode), 16, mode=mode)
        line = F.interpolate(y.flatten(2), scale_factor=2, mode="linear")
        solid = F.interpolate(y[:, :, None], scale_factor=2, mode="trilinear")
        return net.out(line.mean(-1) + solid.mean((2, 3, 4)))

    return Of(run, first=nn.Conv2d(3, 4, 1), out=nn.Linear(4, 3)), images()


@network
def norms() -> Any:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU6(), nn.Conv2d(8, 8, 3),
        nn.InstanceNorm2d(8), nn.Hardswish(), nn.LocalResponseNorm(3), nn.Flatten(),
        nn.Linear(1152, 16), nn.LayerNorm(16), nn.RMSNorm(16), nn.Linear(16, 4),
    )  # fmt: skip
    return net, images()


@network
def reparametrised() -> Any:
    ways = nn.utils.parametrizations
    first, second = ways.weight_norm(nn.Linear(16, 16)), ways.spectral_norm(nn.Linear(16, 16))
    third = nn.utils.spectral_norm(nn.Linear(16, 16))
    return nn.Sequential(first, nn.GELU("tanh"), second, third), rows(16)


@network
def recommender() -> Any:
    def run(net: Any, x: Any, bag: Any) -> Any:
        vectors = torch.stack([net.bottom(x), net.bags(bag)], 1)
        crossed = torch.bmm(vectors, vectors.transpose(1, 2))
        i, j = torch.triu_indices(2, 2, 1)
        return net.top(torch.cat([x, crossed[:, i, j]], 1))

    parts = {"bottom": nn.Linear(6, 8), "bags": nn.EmbeddingBag(50, 8, mode="sum")}
    return Of(run, **parts, top=nn.Linear(7, 1)), (rows(6), words(5))


@network
def bilinear() -> Any:
    def run(net: Any, x: Any) -> Any:
        return net.out(net.pair(x, x))

    return Of(run, pair=nn.Bilinear(8, 8, 6), out=nn.Linear(6, 3)), rows(8)


@network
def contrastive() -> Any:
    def run(net: Any, x: Any, y: Any) -> Any:
        a, b = F.normalize(net.core(x), dim=-1), F.normalize(net.core(y), dim=-1)
        scores = a @ b.t() * net.scale.exp()
        same = torch.arange(x.shape[0])
        far = F.triplet_margin_loss(a, b, a.roll(1, 0))
        near = F.cosine_embedding_loss(a, b, torch.ones(x.shape[0]))
        both = F.cross_entropy(scores, same) + F.cross_entropy(scores.t(), same)
        return both + far + near + F.cosine_similarity(a, b).mean() + scores.logsumexp(-1).mean()

    return Of(run, core=nn.Linear(16, 8), scale=weight(1)), (rows(16), rows(16))


@network
def losses() -> Any:
    def run(net: Any, x: Any, target: Any) -> Any:
        y = net.core(x)
        p, log = y.softmax(-1), y.log_softmax(-1)
        focal = ((1 - p).pow(2) * -log).gather(1, target[:, None]).mean()
        kl = F.kl_div(log, p.detach(), reduction="batchmean")
        soft = F.cross_entropy(y, target, label_smoothing=0.1, weight=torch.ones(8))
        near = F.smooth_l1_loss(y, p.detach()) + F.huber_loss(y, p.detach()) + F.mse_loss(y, p)
        margin = F.multi_margin_loss(y.float(), target) + F.soft_margin_loss(y, p.detach().sign())
        other = F.poisson_nll_loss(y, p) + F.gaussian_nll_loss(y, p, p) + F.l1_loss(y, p)
        return focal + kl + soft + near + margin + other + F.hinge_embedding_loss(y, p.sign())

    return Of(run, core=nn.Linear(16, 8)), (rows(16), torch.zeros(2, dtype=torch.long))


@network
def speech() -> Any:
    def run(net: Any, x: Any, target: Any) -> Any:
        y, _ = net.core(x)
        log = net.out(y).float().log_softmax(-1).transpose(0, 1)
        samples = x.shape[0]
        lengths = torch.full((samples,), 12), torch.full((samples,), 3)
        return F.ctc_loss(log, target, *lengths)

    core = nn.GRU(8, 8, 2, batch_first=True, bidirectional=True)
    target = torch.ones(2, 3, dtype=torch.long)
    return Of(run, core=core, out=nn.Linear(16, 6)), (rows(12, 8), target)


@network
def quantised() -> Any:
    def run(net: Any, x: Any) -> Any:
        z = net.encode(x)
        nearest = torch.cdist(z, net.book).argmin(-1)
        q = F.embedding(nearest, net.book)
        straight = z + (q - z).detach()
        gates = F.gumbel_softmax(z, hard=True)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return F.mse_loss(net.decode(straight * gates), x) + loss

    parts = {"encode": nn.Linear(16, 4), "decode": nn.Linear(4, 16), "book": weight(32, 4)}
    return Of(run, **parts), rows(16)


@network
def windows() -> Any:
    def run(net: Any, x: Any) -> Any:
        y = torch.roll(net.first(x), (-2, -2), (2, 3))
        y = y.unfold(2, 4, 4).unfold(3, 4, 4).flatten(4).movedim(1, -1)
        most, _ = torch.cummax(y, -2)
        ordered, _ = torch.sort(y, -2)
        kth = y.kthvalue(2, -2)[0] + y.median(-2)[0] + y.quantile(0.5, -2)
        return net.out((most + ordered).amax((1, 2, 3)) + kth.mean((1, 2)))

    return Of(run, first=nn.Conv2d(3, 4, 1), out=nn.Linear(4, 3)), images()


@network
def unpooled() -> Any:
    def run(net: Any, x: Any) -> Any:
        y, where = F.max_pool2d(net.first(x), 2, return_indices=True)
        y = F.max_unpool2d(F.lp_pool2d(y, 2, 1), where, 2)
        line = F.adaptive_max_pool1d(y.flatten(2), 4) + F.adaptive_avg_pool1d(y.flatten(2), 4)
        return net.out(line.flatten(1))

    return Of(run, first=nn.Conv2d(3, 4, 1), out=nn.Linear(16, 3)), images()


@network
def activations() -> Any:
    kinds = (
        nn.Softplus(), nn.Mish(), nn.SELU(), nn.CELU(), nn.GELU("tanh"), nn.Hardswish(),
        nn.LogSigmoid(), nn.Hardtanh(), nn.Hardsigmoid(), nn.Softsign(), nn.Tanhshrink(),
        nn.Softshrink(), nn.Hardshrink(), nn.Threshold(0.1, 0), nn.RReLU(), nn.PReLU(16),
        nn.Softmin(-1), nn.GLU(), nn.LogSoftmax(-1),
    )  # fmt: skip
    return nn.Sequential(nn.Linear(8, 16), *kinds, nn.Linear(8, 4)), rows(8)


@network
def arithmetic() -> Any:
    def run(net: Any, x: Any) -> Any:
        y = net.core(x)
        y = torch.where(y > 0, y.clamp(-1, 1), y.abs() * y.sign()) + y.erf() + (y.abs() + 1).log()
        y = y + torch.atan2(y, y + 1) + y.tan() + y.asinh() + y.expm1() + torch.sinc(y) + y.cosh()
        y = y + torch.addcmul(y, y, y) + torch.lerp(y, x, 0.5) + torch.hypot(y, y) + y.logit(0.1)
        y = y + torch.logaddexp(y, y) + y.digamma() + torch.special.i0(y) + y.atan() + y.exp2()
        y = y + torch.fmod(y, 2) + y.frac() + torch.xlogy(y, y.exp()) + y.nan_to_num() + y.square()
        return y.std(-1).mean() + y.var() + y.norm() + y.prod(-1).mean() + y.logcumsumexp(-1).sum()

    return Of(run, core=nn.Linear(8, 8)), rows(8)


@network
def named_outputs() -> Any:
    def run(net: Any, x: Any) -> Any:
        y = net.body(x)
        parts = [F.cross_entropy(y, y.argmax(-1)), y.pow(2).mean()]
        return {"logits": y, "loss": sum(parts)}

    body = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    for parameter in body[0].parameters():
        parameter.requires_grad = False
    return Of(run, body=body, seen=torch.zeros(1)), rows(16)


class _Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 1)


@network
def own_gradient() -> Any:
    def run(net: Any, x: Any) -> Any:
        y = torch.utils.checkpoint.checkpoint(net.first, x, use_reentrant=False)
        return net.last(_Clip.apply(y))

    return Of(run, first=nn.Linear(8, 8), last=nn.Linear(8, 4)), rows(8)


@network
def teacher() -> Any:
    def run(net: Any, x: Any) -> Any:
        y = net.student(x)
        with torch.no_grad():
            goal = net.teacher(x).softmax(-1)
        return -(goal * y.log_softmax(-1)).sum(-1).mean()

    return Of(run, student=nn.Linear(16, 8), teacher=nn.Linear(16, 8)), rows(16)


@network
def einsums() -> Any:
    def run(net: Any, x: Any) -> Any:
        y = torch.einsum("bnd,hde->bhne", x, net.heads)
        y = torch.einsum("bhne,bhme->bhnm", y, y).tril()
        y = torch.einsum("bhnm,bmd->bnhd", y, x).flatten(2)
        z = torch.tensordot(y, net.mix, dims=([2], [1]))
        return net.out(torch.baddbmm(z, z, torch.bmm(z.mT, z)) + torch.kron(net.a, net.b))

    parts = {"heads": weight(2, 8, 4), "mix": weight(8, 16), "out": nn.Linear(8, 4)}
    return Of(run, **parts, a=weight(1, 2), b=weight(1, 4)), rows(6, 8)


@network
def deformed() -> Any:
    def run(net: Any, x: Any) -> Any:
        shift = net.shift(x)
        y, z = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
        at = (y * 16 + z + shift[:, 0].round().long()).clamp(0, 255).flatten(1)
        moved = x.flatten(2).gather(2, at[:, None].expand(-1, 3, -1)).view_as(x)
        moved = torch.take_along_dim(moved, moved.argsort(-1), -1)
        padded = F.pad(moved, (1, 1, 1, 1), "reflect") + F.pad(x, (1, 1, 1, 1), "replicate")
        return net.out(F.pad(padded, (1, 1, 1, 1), "circular") * 1.0)

    return Of(run, shift=nn.Conv2d(3, 1, 1), out=nn.Conv2d(3, 4, 3)), images()


@network
def gradient_penalty() -> Any:
    def run(net: Any, x: Any) -> Any:
        x = x.requires_grad_()
        y = net.critic(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.mean() + 10 * (slope.flatten(1).norm(dim=1) - 1).pow(2).mean()

    critic = nn.Sequential(nn.Conv2d(3, 4, 3), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(784, 1))
    return Of(run, critic=critic), images()


@network
def odds_and_ends() -> Any:
    def run(net: Any, x: Any) -> Any:
        y = net.first(x)
        line = F.pad(y.flatten(2), (1, 1), "replicate")
        y = y + torch.diag_embed(line.mean(-1)).sum((1, 2), keepdim=True)[..., None]
        y = F.dropout2d(F.fractional_max_pool2d(y, 2, output_size=4), 0.1)
        return net.out(y.flatten(1).index_fill(1, torch.tensor([0]), 0.0))

    return Of(run, first=nn.Conv2d(3, 4, 1), out=nn.Linear(64, 3)), images()


@network
def parts_written() -> Any:
    """Into slices, and so into a reshaped buffer; in a loop; scaled in place."""

    def run(net: Any, x: Any) -> Any:
        y = net.first(x)
        moved = torch.zeros_like(y)
        moved[:, :-1, :4] = y[:, 1:, :4]
        moved[:, 1:, 4:8] = y[:, :-1, 4:8]
        moved[:, :, 8:] = y[:, :, 8:]
        h, out = moved[:, 0], x.new_zeros(len(x), 6, 12)
        for t in range(6):
            h = torch.tanh(net.again(h) + moved[:, t])
            out[:, t] = h
        flat = out.view(len(x), -1)
        flat[:, :3].mul_(net.scale)
        return net.out(out.mean(1)) + flat.mean(1, keepdim=True)

    linear = {"first": nn.Linear(8, 12), "again": nn.Linear(12, 12), "out": nn.Linear(12, 4)}
    return Of(run, **linear, scale=weight(3)), rows(6, 8)


@network
def spectral() -> Any:
    """A Fourier neural operator's layer: complex weights, of which the product is a part."""

    def run(net: Any, x: Any) -> Any:
        y = net.lift(x)
        waves = torch.fft.rfft2(y)
        kept = torch.zeros_like(waves)
        kept[:, :, :4, :4] = torch.einsum("bihw,iohw->bohw", waves[:, :, :4, :4], net.low)
        kept[:, :, -4:, :4] = torch.einsum("bihw,iohw->bohw", waves[:, :, -4:, :4], net.high)
        return net.out(F.gelu(torch.fft.irfft2(kept, s=y.shape[-2:]) + net.skip(y)))

    low, high = (nn.Parameter(torch.randn(6, 6, 4, 4, dtype=torch.cfloat)) for _ in range(2))
    layers = {"lift": nn.Conv2d(3, 6, 1), "skip": nn.Conv2d(6, 6, 1), "out": nn.Conv2d(6, 2, 1)}
    return Of(run, **layers, low=low, high=high), images()


@network
def neighbours() -> Any:
    """An index that the loss depends on passes no gradient on to the distances it is from."""

    def run(net: Any, x: Any) -> Any:
        y = net.first(x)
        near = torch.cdist(y, y).topk(3, largest=False)[1]
        edges = y[torch.arange(len(y))[:, None, None], near]
        return net.out(torch.cat([edges, y[:, :, None].expand_as(edges)], -1)).amax(2)

    return Of(run, first=nn.Linear(8, 12), out=nn.Linear(24, 4)), rows(10, 8)


@network
def fused_sums() -> Any:
    def run(net: Any, x: Any) -> Any:
        y = net.first(x)
        z = torch.addcmul(y, net.peep, y.tanh())
        z = torch.addcdiv(z, y, y.exp() + 1.0, value=0.5)
        z = torch.lerp(z, y, 0.3) + torch.lerp(y, z, z.sigmoid())
        return net.out(z)

    return Of(run, first=nn.Linear(8, 12), peep=weight(12), out=nn.Linear(12, 4)), rows(6, 8)


@network
def forces() -> Any:
    """Energies and their slopes: gradients pass through kept results and turned weights."""

    def run(net: Any, x: Any) -> Any:
        x = x.detach().requires_grad_()
        y = torch.sigmoid(net.first(x)) + torch.exp(-net.second(x).square())
        energy = net.out(torch.tanh(net.third(y))).sum(-1)
        (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy.mean() + slope.norm(dim=-1).mean()

    parts = {"first": nn.Linear(8, 12), "second": nn.Linear(8, 12), "third": nn.Linear(12, 6)}
    return Of(run, **parts, out=nn.Linear(6, 1)), rows(5, 8)


def snake(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    return x + (alpha * x).sin().pow(2) / (alpha + 1e-6)


@network
def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        function = torch.jit.script(snake)

    def run(net: Any, x: Any) -> Any:
        return net.out(function(net.first(x), net.alpha))

    return Of(run, first=nn.Linear(8, 12), alpha=weight(12), out=nn.Linear(12, 4)), rows(6, 8)


@network
def mapped() -> Any:
    """An ensemble whose members one call of vmap runs."""

    def run(net: Any, x: Any) -> Any:
        def member(first: Any, second: Any, rows: Any) -> Any:
            return F.linear(F.softplus(F.linear(rows, first)), second) + 1e-3

        ys = torch.vmap(member, in_dims=(0, 0, None))(net.first, net.second, x)
        return ys.mean(0) + ys.var(0)

    return Of(run, first=weight(3, 12, 8), second=weight(3, 4, 12)), rows(6, 8)
