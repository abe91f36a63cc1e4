"""Eighteen hand-written networks, each with a builder that returns a module and its inputs."""

import itertools
import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

# --- 1. residual CNN with odd widths -----------------------------------------------------------


class OddBlock(nn.Module):
    """Two 3x3 convolutions with a projected shortcut."""

    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.short = nn.Identity()
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(
                nn.AvgPool2d(stride) if stride > 1 else nn.Identity(),
                nn.Conv2d(cin, cout, 1, bias=False),
                nn.BatchNorm2d(cout),
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.short(x))


class OddResNet(nn.Module):
    """Residual classifier with 72/144/288/504 channels and a three-convolution stem."""

    def __init__(self, classes=212, widths=(72, 144, 288, 504), depths=(3, 4, 7, 3)):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 36, 3, 2, 1, bias=False),
            nn.BatchNorm2d(36),
            nn.ReLU(inplace=True),
            nn.Conv2d(36, 36, 3, 1, 1, bias=False),
            nn.BatchNorm2d(36),
            nn.ReLU(inplace=True),
            nn.Conv2d(36, widths[0], 3, 1, 1, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks, cin = [], widths[0]
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            for i in range(depth):
                blocks.append(OddBlock(cin, width, 2 if stage > 0 and i == 0 else 1))
                cin = width
        self.blocks = nn.Sequential(*blocks)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(cin, classes)

    def forward(self, x):
        x = self.blocks(self.stem(x))
        return self.fc(self.drop(x.mean(dim=(2, 3))))


def odd_resnet(batch=128):
    return OddResNet(), torch.randn(batch, 3, 160, 160)


# --- 2. decoder language model -----------------------------------------------------------------


class RMSNorm(nn.Module):
    """Root-mean-square normalisation computed in float32."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return h.type_as(x) * self.weight


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class GroupedAttention(nn.Module):
    """Causal attention with rotary positions and fewer key/value heads than query heads."""

    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.hd = heads, kv_heads, dim // heads
        self.wq = nn.Linear(dim, heads * self.hd, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.hd, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.hd, bias=False)
        self.wo = nn.Linear(heads * self.hd, dim, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.heads, self.hd).transpose(1, 2)
        k = self.wk(x).view(b, t, self.kv_heads, self.hd).transpose(1, 2)
        v = self.wv(x).view(b, t, self.kv_heads, self.hd).transpose(1, 2)
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        rep = self.heads // self.kv_heads
        k, v = k.repeat_interleave(rep, dim=1), v.repeat_interleave(rep, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


class SwiGLU(nn.Module):
    """Gated feed-forward layer with a SiLU gate."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class DecoderLayer(nn.Module):
    """Pre-norm decoder layer."""

    def __init__(self, dim, heads, kv_heads, hidden):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(dim), RMSNorm(dim)
        self.attn = GroupedAttention(dim, heads, kv_heads)
        self.ffn = SwiGLU(dim, hidden)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.norm1(x), cos, sin)
        return x + self.ffn(self.norm2(x))


class RotaryLM(nn.Module):
    """Decoder-only language model with tied embeddings and next-token loss."""

    def __init__(self, vocab=24000, dim=640, depth=14, heads=10, kv_heads=2, hidden=1728):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            DecoderLayer(dim, heads, kv_heads, hidden) for _ in range(depth)
        )
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.head.weight = self.embed.weight
        half = dim // heads // 2
        freq = 10000.0 ** (-torch.arange(half).float() / half)
        self.register_buffer("freq", freq, persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens[:, :-1])
        pos = torch.arange(x.shape[1], device=x.device).float()
        angle = torch.outer(pos, self.freq)
        cos, sin = angle.cos(), angle.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def rotary_lm(batch=8):
    return RotaryLM(), torch.randint(0, 24000, (batch, 769))


# --- 3. encoder classifier ---------------------------------------------------------------------


class TextEncoder(nn.Module):
    """Text classifier on nn.TransformerEncoder with learned positions and masked mean pooling."""

    def __init__(self, vocab=18000, length=320, dim=448, heads=7, ff=1600, depth=9, classes=14):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(1, length, dim) * 0.02)
        self.norm = nn.LayerNorm(dim)
        layer = nn.TransformerEncoderLayer(
            dim, heads, ff, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, classes))

    def forward(self, ids):
        x = self.norm(self.tok(ids) + self.pos[:, : ids.shape[1]])
        x = self.encoder(x)
        keep = (ids != 0).unsqueeze(-1).to(x.dtype)
        pooled = (x * keep).sum(1) / keep.sum(1).clamp(min=1)
        return self.out(pooled)


def text_encoder(batch=48):
    return TextEncoder(), torch.randint(1, 18000, (batch, 320))


# --- 4. diffusion U-Net ------------------------------------------------------------------------


class TimeResBlock(nn.Module):
    """GroupNorm residual block with scale and shift from the time embedding."""

    def __init__(self, cin, cout, tdim, dropout=0.1):
        super().__init__()
        self.norm1 = nn.GroupNorm(16, cin)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.time = nn.Linear(tdim, 2 * cout)
        self.norm2 = nn.GroupNorm(16, cout)
        self.drop = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        h = self.conv2(self.drop(F.silu(h)))
        return h + self.skip(x)


class PixelAttention(nn.Module):
    """Multi-head self-attention over the pixels of a small feature map."""

    def __init__(self, ch, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(16, ch)
        self.qkv = nn.Conv2d(ch, 3 * ch, 1)
        self.proj = nn.Conv2d(ch, ch, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w)
        q, k, v = qkv.unbind(1)
        weights = torch.einsum("bhci,bhcj->bhij", q, k) / math.sqrt(c // self.heads)
        y = torch.einsum("bhij,bhcj->bhci", weights.softmax(-1), v)
        return x + self.proj(y.reshape(b, c, h, w))


class NoiseUNet(nn.Module):
    """Noise-predicting U-Net that draws its own noise and returns the mean squared error."""

    def __init__(self, cin=3, base=80, mults=(1, 2, 3, 4), steps=1000):
        super().__init__()
        self.base, tdim = base, base * 4
        beta = torch.linspace(1e-4, 0.02, steps)
        self.register_buffer("abar", torch.cumprod(1 - beta, 0))
        self.temb = nn.Sequential(nn.Linear(base, tdim), nn.SiLU(), nn.Linear(tdim, tdim))
        self.inp = nn.Conv2d(cin, base, 3, padding=1)
        widths = [base * m for m in mults]
        self.down, self.pool = nn.ModuleList(), nn.ModuleList()
        ch, skips = base, []
        for i, w in enumerate(widths):
            self.down.append(nn.ModuleList([TimeResBlock(ch, w, tdim), TimeResBlock(w, w, tdim)]))
            skips += [w, w]
            ch = w
            last = i == len(widths) - 1
            self.pool.append(nn.Identity() if last else nn.Conv2d(w, w, 3, 2, 1))
        self.mid1 = TimeResBlock(ch, ch, tdim)
        self.attn = PixelAttention(ch)
        self.mid2 = TimeResBlock(ch, ch, tdim)
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for i, w in enumerate(reversed(widths)):
            blocks = []
            for _ in range(2):
                blocks.append(TimeResBlock(ch + skips.pop(), w, tdim))
                ch = w
            self.up.append(nn.ModuleList(blocks))
            last = i == len(widths) - 1
            self.grow.append(
                nn.Identity()
                if last
                else nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(w, w, 3, padding=1))
            )
        self.out = nn.Sequential(nn.GroupNorm(16, ch), nn.SiLU(), nn.Conv2d(ch, cin, 3, padding=1))

    def predict(self, x, t):
        half = self.base // 2
        freq = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        angle = t[:, None].float() * freq[None]
        emb = self.temb(torch.cat((angle.sin(), angle.cos()), dim=1))
        h, skips = self.inp(x), []
        for blocks, pool in zip(self.down, self.pool, strict=True):
            for block in blocks:
                h = block(h, emb)
                skips.append(h)
            h = pool(h)
        h = self.mid2(self.attn(self.mid1(h, emb)), emb)
        for blocks, grow in zip(self.up, self.grow, strict=True):
            for block in blocks:
                h = block(torch.cat((h, skips.pop()), dim=1), emb)
            h = grow(h)
        return self.out(h)

    def forward(self, x, t):
        noise = torch.randn_like(x)
        a = self.abar[t][:, None, None, None]
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        return F.mse_loss(self.predict(noisy, t).float(), noise)


def noise_unet(batch=16):
    return NoiseUNet(), (torch.randn(batch, 3, 96, 96), torch.randint(0, 1000, (batch,)))


# --- 5. mobile CNN -----------------------------------------------------------------------------


class SqueezeGate(nn.Module):
    """Channel gate from pooled features."""

    def __init__(self, ch, ratio=4):
        super().__init__()
        self.down = nn.Conv2d(ch, ch // ratio, 1)
        self.up = nn.Conv2d(ch // ratio, ch, 1)

    def forward(self, x):
        s = F.adaptive_avg_pool2d(x, 1)
        return x * F.hardsigmoid(self.up(F.relu(self.down(s))))


class InvertedUnit(nn.Module):
    """Expand, depthwise, gate and project, with a shortcut where shapes allow."""

    def __init__(self, cin, cout, expand, kernel, stride):
        super().__init__()
        mid = cin * expand
        self.add = stride == 1 and cin == cout
        self.body = nn.Sequential(
            nn.Conv2d(cin, mid, 1, bias=False),
            nn.BatchNorm2d(mid),
            nn.Hardswish(inplace=True),
            nn.Conv2d(mid, mid, kernel, stride, kernel // 2, groups=mid, bias=False),
            nn.BatchNorm2d(mid),
            nn.Hardswish(inplace=True),
            SqueezeGate(mid),
            nn.Conv2d(mid, cout, 1, bias=False),
            nn.BatchNorm2d(cout),
        )

    def forward(self, x):
        y = self.body(x)
        return x + y if self.add else y


class PocketNet(nn.Module):
    """Depthwise-separable classifier for small images."""

    plan = (
        (24, 3, 3, 2, 3),
        (40, 4, 5, 2, 3),
        (88, 4, 3, 2, 4),
        (120, 5, 5, 1, 4),
        (208, 5, 5, 2, 4),
    )

    def __init__(self, classes=100):
        super().__init__()
        layers = [nn.Conv2d(3, 20, 3, 2, 1, bias=False), nn.BatchNorm2d(20), nn.Hardswish()]
        cin = 20
        for cout, expand, kernel, stride, count in self.plan:
            for i in range(count):
                layers.append(InvertedUnit(cin, cout, expand, kernel, stride if i == 0 else 1))
                cin = cout
        layers += [nn.Conv2d(cin, 960, 1, bias=False), nn.BatchNorm2d(960), nn.Hardswish()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(960, 1200),
            nn.Hardswish(),
            nn.Dropout(0.2),
            nn.Linear(1200, classes),
        )

    def forward(self, x):
        return self.head(self.features(x))


def pocket_net(batch=128):
    return PocketNet(), torch.randn(batch, 3, 192, 192)


# --- 6. recurrent tagger -----------------------------------------------------------------------


class LSTMTagger(nn.Module):
    """Bidirectional LSTM tagger with a character-count feature and per-token loss."""

    def __init__(self, vocab=32000, shapes=64, dim=300, hidden=420, layers=3, tags=47):
        super().__init__()
        self.words = nn.Embedding(vocab, dim)
        self.shape = nn.Embedding(shapes, 36)
        self.drop = nn.Dropout(0.3)
        self.lstm = nn.LSTM(
            dim + 36, hidden, layers, batch_first=True, dropout=0.3, bidirectional=True
        )
        self.hidden = nn.Linear(2 * hidden, 256)
        self.out = nn.Linear(256, tags)

    def forward(self, words, shapes, tags):
        x = self.drop(torch.cat((self.words(words), self.shape(shapes)), dim=-1))
        y, _ = self.lstm(x)
        logits = self.out(F.elu(self.hidden(self.drop(y))))
        return F.cross_entropy(logits.transpose(1, 2).float(), tags)


def lstm_tagger(batch=64):
    words = torch.randint(0, 32000, (batch, 128))
    shapes = torch.randint(0, 64, (batch, 128))
    return LSTMTagger(), (words, shapes, torch.randint(0, 47, (batch, 128)))


# --- 7. vision transformer ---------------------------------------------------------------------


class DropPath(nn.Module):
    """Stochastic depth, one draw per sample."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        if not self.training or self.rate == 0:
            return x
        shape = (x.shape[0],) + (1,) * (x.dim() - 1)
        mask = torch.rand(shape, device=x.device) >= self.rate
        return x * mask.to(x.dtype) / (1 - self.rate)


class ScaledBlock(nn.Module):
    """Transformer block with layer scale and stochastic depth."""

    def __init__(self, dim, heads, mlp, rate, init=1e-4):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, mlp), nn.Linear(mlp, dim)
        self.g1 = nn.Parameter(init * torch.ones(dim))
        self.g2 = nn.Parameter(init * torch.ones(dim))
        self.drop = DropPath(rate)

    def attend(self, x):
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, n, c))

    def forward(self, x):
        x = x + self.drop(self.g1 * self.attend(self.n1(x)))
        return x + self.drop(self.g2 * self.fc2(F.gelu(self.fc1(self.n2(x)))))


class Patch14ViT(nn.Module):
    """Vision transformer on 14-pixel patches with a class token."""

    def __init__(self, size=224, dim=432, depth=13, heads=6, mlp=1728, classes=365):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 14, 14)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, (size // 14) ** 2 + 1, dim) * 0.02)
        rates = [0.15 * i / (depth - 1) for i in range(depth)]
        self.blocks = nn.ModuleList(ScaledBlock(dim, heads, mlp, r) for r in rates)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1).to(x.dtype), x), dim=1)
        x = x + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def patch14_vit(batch=64):
    return Patch14ViT(), torch.randn(batch, 3, 224, 224)


# --- 8. modern CNN with depthwise 5x5 ----------------------------------------------------------


class ChannelsLastNorm(nn.Module):
    """LayerNorm over the channels of an NCHW map."""

    def __init__(self, ch):
        super().__init__()
        self.norm = nn.LayerNorm(ch, eps=1e-6)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class WideBlock(nn.Module):
    """Depthwise 5x5 convolution and a pointwise MLP in channels-last order."""

    def __init__(self, ch, ratio=3):
        super().__init__()
        self.dw = nn.Conv2d(ch, ch, 5, padding=2, groups=ch)
        self.norm = nn.LayerNorm(ch, eps=1e-6)
        self.fc1 = nn.Linear(ch, ratio * ch)
        self.fc2 = nn.Linear(ratio * ch, ch)
        self.gamma = nn.Parameter(1e-6 * torch.ones(ch))

    def forward(self, x):
        y = self.dw(x).permute(0, 2, 3, 1)
        y = self.fc2(F.gelu(self.fc1(self.norm(y)))) * self.gamma
        return x + y.permute(0, 3, 1, 2)


class DepthwiseFive(nn.Module):
    """Four-stage CNN of depthwise 5x5 blocks."""

    def __init__(self, widths=(80, 160, 320, 560), depths=(2, 3, 10, 3), classes=500):
        super().__init__()
        layers = [nn.Conv2d(3, widths[0], 4, 4), ChannelsLastNorm(widths[0])]
        for i, (w, d) in enumerate(zip(widths, depths, strict=True)):
            if i:
                layers += [ChannelsLastNorm(widths[i - 1]), nn.Conv2d(widths[i - 1], w, 2, 2)]
            layers += [WideBlock(w) for _ in range(d)]
        self.trunk = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(widths[-1])
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x):
        return self.head(self.norm(self.trunk(x).mean((-2, -1))))


def depthwise_five(batch=48):
    return DepthwiseFive(), torch.randn(batch, 3, 224, 224)


# --- 9. audio network --------------------------------------------------------------------------


class GatedConv(nn.Module):
    """Weight-normalised dilated convolution with a GLU and a residual path."""

    def __init__(self, ch, kernel, dilation):
        super().__init__()
        pad = dilation * (kernel - 1) // 2
        self.conv = nn.utils.parametrizations.weight_norm(
            nn.Conv1d(ch, 2 * ch, kernel, padding=pad, dilation=dilation)
        )
        self.mix = nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        return (x + self.mix(F.glu(self.conv(x), dim=1))) * math.sqrt(0.5)


class WaveTagger(nn.Module):
    """Raw-waveform tagger: strided convolutions, then gated dilated stacks."""

    def __init__(self, classes=35, widths=(48, 96, 192, 256), kernels=(10, 8, 8, 4)):
        super().__init__()
        stages, cin = [], 1
        for width, kernel in zip(widths, kernels, strict=True):
            stages += [
                nn.Conv1d(cin, width, kernel, kernel // 2, kernel // 4, bias=False),
                nn.BatchNorm1d(width),
                nn.LeakyReLU(0.1),
            ]
            stages += [GatedConv(width, 5, 3**i) for i in range(3)]
            cin = width
        self.stages = nn.Sequential(*stages)
        self.score = nn.Conv1d(cin, 1, 1)
        self.out = nn.Linear(2 * cin, classes)

    def forward(self, wave):
        x = self.stages(wave)
        w = self.score(x).softmax(dim=-1)
        mean = (x * w).sum(-1)
        var = ((x - mean.unsqueeze(-1)) ** 2 * w).sum(-1)
        return self.out(torch.cat((mean, (var + 1e-5).sqrt()), dim=1))


def wave_tagger(batch=48):
    return WaveTagger(), torch.randn(batch, 1, 32000)


# --- 10. video network -------------------------------------------------------------------------


class FactoredConv(nn.Sequential):
    """Spatial convolution followed by a temporal one."""

    def __init__(self, cin, cout, stride=1, tstride=1):
        mid = (27 * cin * cout) // (9 * cin + 3 * cout)
        super().__init__(
            nn.Conv3d(cin, mid, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False),
            nn.BatchNorm3d(mid),
            nn.ReLU(inplace=True),
            nn.Conv3d(mid, cout, (3, 1, 1), (tstride, 1, 1), (1, 0, 0), bias=False),
        )


class ClipBlock(nn.Module):
    """Residual block of two factored convolutions."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = FactoredConv(cin, cout, stride, stride)
        self.bn1 = nn.BatchNorm3d(cout)
        self.conv2 = FactoredConv(cout, cout)
        self.bn2 = nn.BatchNorm3d(cout)
        self.short = nn.Sequential()
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(
                nn.Conv3d(cin, cout, 1, stride, bias=False), nn.BatchNorm3d(cout)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


class ClipNet(nn.Module):
    """Action classifier for short clips."""

    def __init__(self, classes=64, widths=(48, 96, 192, 320)):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, 48, (3, 5, 5), (1, 2, 2), (1, 2, 2), bias=False),
            nn.BatchNorm3d(48),
            nn.ReLU(inplace=True),
        )
        blocks, cin = [], 48
        for i, width in enumerate(widths):
            blocks += [ClipBlock(cin, width, 2 if i else 1), ClipBlock(width, width, 1)]
            cin = width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(cin, classes)

    def forward(self, clip):
        x = self.blocks(self.stem(clip))
        return self.fc(F.adaptive_avg_pool3d(x, 1).flatten(1))


def clip_net(batch=12):
    return ClipNet(), torch.randn(batch, 3, 16, 112, 112)


# --- 11. recommender ---------------------------------------------------------------------------


class CrossLayer(nn.Module):
    """Low-rank feature crossing with the input of the stack."""

    def __init__(self, dim, rank):
        super().__init__()
        self.v = nn.Linear(dim, rank, bias=False)
        self.u = nn.Linear(rank, dim)

    def forward(self, x0, x):
        return x0 * self.u(self.v(x)) + x


TABLES = (400000, 250000, 120000, 60000, 20000, 8000, 3000, 1000, 366, 128, 48, 24, 7)


class ClickModel(nn.Module):
    """Click predictor with embedding tables, cross layers and a deep MLP."""

    def __init__(self, tables=TABLES, dense=17, dim=48, crosses=4, hidden=(2048, 1536, 1024, 512)):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, dim) for n in tables)
        self.dense = nn.Sequential(
            nn.BatchNorm1d(dense), nn.Linear(dense, 256), nn.ReLU(), nn.Linear(256, dim)
        )
        width = dim * (len(tables) + 1)
        self.cross = nn.ModuleList(CrossLayer(width, 160) for _ in range(crosses))
        sizes = (width, *hidden)
        mlp = []
        for a, b in itertools.pairwise(sizes):
            mlp += [nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU(), nn.Dropout(0.1)]
        self.mlp = nn.Sequential(*mlp)
        self.out = nn.Linear(width + hidden[-1], 1)

    def forward(self, dense, ids, label):
        parts = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        x0 = torch.cat([self.dense(dense), *parts], dim=1)
        x = x0
        for cross in self.cross:
            x = cross(x0, x)
        logit = self.out(torch.cat((x, self.mlp(x0)), dim=1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(logit.float(), label)


def click_model(batch=16384):
    ids = torch.stack([torch.randint(0, n, (batch,)) for n in TABLES], dim=1)
    label = torch.randint(0, 2, (batch,)).float()
    return ClickModel(), (torch.randn(batch, 17), ids, label)


# --- 12. gated MLP for images ------------------------------------------------------------------


class SpatialGate(nn.Module):
    """Gate half of the channels with a token-mixing projection of the other half."""

    def __init__(self, half, tokens):
        super().__init__()
        self.norm = nn.LayerNorm(half)
        self.mix = nn.Linear(tokens, tokens)
        nn.init.normal_(self.mix.weight, std=1e-3)
        nn.init.ones_(self.mix.bias)

    def forward(self, x):
        u, v = x.chunk(2, dim=-1)
        v = self.mix(self.norm(v).transpose(1, 2)).transpose(1, 2)
        return u * v


class GatedMLPBlock(nn.Module):
    """Norm, expand, spatial gate, project."""

    def __init__(self, dim, hidden, tokens):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden)
        self.gate = SpatialGate(hidden // 2, tokens)
        self.down = nn.Linear(hidden // 2, dim)

    def forward(self, x):
        return x + self.down(self.gate(F.gelu(self.up(self.norm(x)))))


class GatedMixer(nn.Module):
    """Attention-free image classifier of gated MLP blocks."""

    def __init__(self, size=192, patch=12, dim=272, hidden=1632, depth=24, classes=150):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, patch, patch)
        tokens = (size // patch) ** 2
        self.blocks = nn.Sequential(*(GatedMLPBlock(dim, hidden, tokens) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def gated_mixer(batch=48):
    return GatedMixer(), torch.randn(batch, 3, 192, 192)


# --- 13. pyramid detector ----------------------------------------------------------------------


def conv_bn(cin, cout, kernel=3, stride=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(cout),
        nn.SiLU(inplace=True),
    )


class SplitStage(nn.Module):
    """Downsample, then a cross-stage split with a chain of residual bottlenecks."""

    def __init__(self, cin, cout, count):
        super().__init__()
        half = cout // 2
        self.down = conv_bn(cin, cout, 3, 2)
        self.left, self.right = conv_bn(cout, half, 1), conv_bn(cout, half, 1)
        self.chain = nn.ModuleList(
            nn.Sequential(conv_bn(half, half, 1), conv_bn(half, half, 3)) for _ in range(count)
        )
        self.join = conv_bn(cout, cout, 1)

    def forward(self, x):
        x = self.down(x)
        y = self.right(x)
        for link in self.chain:
            y = y + link(y)
        return self.join(torch.cat((self.left(x), y), dim=1))


class PyramidDetector(nn.Module):
    """Anchor-free detector: pyramid features, shared heads, focal and box losses."""

    def __init__(self, classes=20, neck=128, widths=(64, 128, 256, 448), counts=(1, 3, 5, 3)):
        super().__init__()
        self.classes = classes
        self.stem = conv_bn(3, 32, 3, 2)
        self.stages = nn.ModuleList(
            SplitStage(a, b, n) for a, b, n in zip((32, *widths[:-1]), widths, counts, strict=True)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(w, neck, 1) for w in widths[1:])
        self.smooth = nn.ModuleList(conv_bn(neck, neck) for _ in widths[1:])
        self.cls_tower = nn.Sequential(*(conv_bn(neck, neck) for _ in range(3)))
        self.box_tower = nn.Sequential(*(conv_bn(neck, neck) for _ in range(3)))
        self.cls_out = nn.Conv2d(neck, classes, 3, padding=1)
        self.box_out = nn.Conv2d(neck, 4, 3, padding=1)
        nn.init.constant_(self.cls_out.bias, -math.log(99))

    def forward(self, image, labels, boxes):
        x, feats = self.stem(image), []
        for stage in self.stages:
            x = stage(x)
            feats.append(x)
        maps = [lat(f) for lat, f in zip(self.lateral, feats[1:], strict=True)]
        for i in range(len(maps) - 1, 0, -1):
            size = maps[i - 1].shape[-2:]
            maps[i - 1] = maps[i - 1] + F.interpolate(maps[i], size=size, mode="nearest")
        maps = [smooth(m) for smooth, m in zip(self.smooth, maps, strict=True)]
        scores = [self.cls_out(self.cls_tower(m)).flatten(2) for m in maps]
        coords = [F.softplus(self.box_out(self.box_tower(m))).flatten(2) for m in maps]
        scores = torch.cat(scores, dim=2).transpose(1, 2).float()
        coords = torch.cat(coords, dim=2).transpose(1, 2).float()
        target = F.one_hot(labels, self.classes + 1)[..., 1:].float()
        bce = F.binary_cross_entropy_with_logits(scores, target, reduction="none")
        p = scores.sigmoid()
        pt = p * target + (1 - p) * (1 - target)
        alpha = 0.25 * target + 0.75 * (1 - target)
        positive = (labels > 0).float()
        count = positive.sum().clamp(min=1)
        focal = (alpha * (1 - pt) ** 2 * bce).sum() / count
        box = F.smooth_l1_loss(coords, boxes, reduction="none").sum(-1)
        return focal + (box * positive).sum() / count


def pyramid_detector(batch=16):
    spots = 48**2 + 24**2 + 12**2
    labels = torch.randint(0, 21, (batch, spots)) * (torch.rand(batch, spots) < 0.03)
    boxes = torch.randn(batch, spots, 4).abs()
    return PyramidDetector(), (torch.randn(batch, 3, 384, 384), labels, boxes)


# --- 14. image-text contrastive pair -----------------------------------------------------------


class BottleneckBlock(nn.Module):
    """Bottleneck with a grouped 3x3 convolution."""

    def __init__(self, cin, cout, stride, groups=8):
        super().__init__()
        mid = cout // 2
        self.body = nn.Sequential(
            nn.Conv2d(cin, mid, 1, bias=False),
            nn.BatchNorm2d(mid),
            nn.ReLU(inplace=True),
            nn.Conv2d(mid, mid, 3, stride, 1, groups=groups, bias=False),
            nn.BatchNorm2d(mid),
            nn.ReLU(inplace=True),
            nn.Conv2d(mid, cout, 1, bias=False),
            nn.BatchNorm2d(cout),
        )
        self.short = None
        if stride > 1 or cin != cout:
            self.short = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x):
        side = x if self.short is None else self.short(x)
        return torch.relu(self.body(x) + side)


class ImageTextPair(nn.Module):
    """Image CNN and text transformer trained with a symmetric InfoNCE loss."""

    def __init__(self, vocab=16000, length=48, dim=384, heads=6, depth=6, out=256):
        super().__init__()
        plan = ((128, 1, 2), (256, 2, 3), (512, 2, 5), (896, 2, 2))
        layers = [nn.Conv2d(3, 64, 7, 4, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
        cin = 64
        for width, stride, count in plan:
            for i in range(count):
                layers.append(BottleneckBlock(cin, width, stride if i == 0 else 1))
                cin = width
        self.visual = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.vproj = nn.Linear(cin, out, bias=False)
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(length, dim)
        self.text = nn.ModuleList(
            nn.TransformerEncoderLayer(
                dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.tnorm = nn.LayerNorm(dim)
        self.tproj = nn.Linear(dim, out, bias=False)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image, ids):
        v = F.normalize(self.vproj(self.visual(image)).float(), dim=-1)
        t = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.text:
            t = layer(t)
        t = F.normalize(self.tproj(self.tnorm(t)[:, -1]).float(), dim=-1)
        logits = self.scale.clamp(max=4.6).exp() * (v @ t.t())
        target = torch.arange(logits.shape[0], device=logits.device)
        logits = logits.float()
        return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target))


def image_text_pair(batch=128):
    ids = torch.randint(0, 16000, (batch, 48))
    return ImageTextPair(), (torch.randn(batch, 3, 208, 208), ids)


# --- 15. tabular residual MLP ------------------------------------------------------------------


class TabularBlock(nn.Module):
    """Batch-normalised residual pair of linear layers."""

    def __init__(self, dim, hidden, dropout):
        super().__init__()
        self.norm = nn.BatchNorm1d(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.fc2(self.drop(F.relu(self.fc1(self.norm(x)))))


class TabularResNet(nn.Module):
    """Deep residual MLP on numeric columns with periodic features."""

    def __init__(self, columns=118, bins=6, dim=768, hidden=1344, depth=20, classes=9):
        super().__init__()
        self.freq = nn.Parameter(torch.randn(columns, bins))
        self.inp = nn.Linear(columns * (2 * bins + 1), dim)
        self.blocks = nn.ModuleList(TabularBlock(dim, hidden, 0.15) for _ in range(depth))
        self.norm = nn.BatchNorm1d(dim)
        self.out = nn.Linear(dim, classes)

    def forward(self, x):
        wave = 2 * math.pi * x.unsqueeze(-1) * self.freq
        x = torch.cat((x.unsqueeze(-1), wave.sin(), wave.cos()), dim=-1).flatten(1)
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.out(F.relu(self.norm(x)))


def tabular_resnet(batch=4096):
    return TabularResNet(), torch.randn(batch, 118)


# --- 16. inception and dense concatenation -----------------------------------------------------


class DenseUnit(nn.Module):
    """Pre-activation bottleneck that appends its output to its input."""

    def __init__(self, cin, growth):
        super().__init__()
        self.n1, self.c1 = nn.BatchNorm2d(cin), nn.Conv2d(cin, 4 * growth, 1, bias=False)
        self.n2 = nn.BatchNorm2d(4 * growth)
        self.c2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x):
        y = self.c1(F.relu(self.n1(x)))
        y = self.c2(F.relu(self.n2(y)))
        return torch.cat((x, y), dim=1)


class MixedPool(nn.Module):
    """Inception-like reduction: strided convolutions and a max pool, concatenated."""

    def __init__(self, cin, cout):
        super().__init__()
        third = cout // 3
        self.a = nn.Sequential(nn.Conv2d(cin, third, 1), nn.Conv2d(third, third, 3, 2, 1))
        self.b = nn.Sequential(
            nn.Conv2d(cin, third, 1),
            nn.Conv2d(third, third, (1, 5), padding=(0, 2)),
            nn.Conv2d(third, third, (5, 1), padding=(2, 0)),
            nn.AvgPool2d(2, ceil_mode=True),
        )
        self.c = nn.Sequential(nn.MaxPool2d(2, ceil_mode=True), nn.Conv2d(cin, third, 1))
        self.norm = nn.BatchNorm2d(3 * third)

    def forward(self, x):
        return F.relu(self.norm(torch.cat((self.a(x), self.b(x), self.c(x)), dim=1)))


class ConcatNet(nn.Module):
    """Dense stages joined by inception-like reductions."""

    def __init__(self, classes=80, growth=28, counts=(5, 8, 12, 8)):
        super().__init__()
        ch = 54
        layers = [nn.Conv2d(3, ch, 5, 2, 2, bias=False), nn.BatchNorm2d(ch), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        for i, count in enumerate(counts):
            for _ in range(count):
                layers.append(DenseUnit(ch, growth))
                ch += growth
            if i < len(counts) - 1:
                out = ch // 2 // 3 * 3
                layers.append(MixedPool(ch, out))
                ch = out
        layers += [nn.BatchNorm2d(ch), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.net = nn.Sequential(*layers, nn.Linear(ch, classes))

    def forward(self, x):
        return self.net(x)


def concat_net(batch=64):
    return ConcatNet(), torch.randn(batch, 3, 176, 176)


# --- 17. adversarial pair ----------------------------------------------------------------------


class Painter(nn.Module):
    """Generator of transposed convolutions with a residual refinement per scale."""

    def __init__(self, latent, widths):
        super().__init__()
        self.first = widths[0]
        self.fc = nn.Linear(latent, widths[0] * 16)
        self.ups, self.fine = nn.ModuleList(), nn.ModuleList()
        for a, b in itertools.pairwise(widths):
            self.ups.append(
                nn.Sequential(
                    nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()
                )
            )
            self.fine.append(
                nn.Sequential(nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
            )
        self.rgb = nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, z):
        x = self.fc(z).view(-1, self.first, 4, 4)
        for up, fine in zip(self.ups, self.fine, strict=True):
            x = up(x)
            x = x + fine(x)
        return torch.tanh(self.rgb(x))


class Critic(nn.Module):
    """Strided-convolution discriminator with spectral normalisation left out."""

    def __init__(self, widths):
        super().__init__()
        layers, cin = [], 3
        for w in widths:
            layers += [nn.Conv2d(cin, w, 4, 2, 1), nn.GroupNorm(8, w), nn.LeakyReLU(0.2)]
            layers += [nn.Conv2d(w, w, 3, 1, 1), nn.LeakyReLU(0.2)]
            cin = w
        self.body = nn.Sequential(*layers)
        self.out = nn.Linear(cin * 16, 1)

    def forward(self, x):
        return self.out(self.body(x).flatten(1)).squeeze(1).float()


class AdversarialPair(nn.Module):
    """Generator and discriminator with both losses summed in one forward pass."""

    def __init__(self, latent=160):
        super().__init__()
        self.painter = Painter(latent, (512, 384, 256, 128, 64, 48))
        self.critic = Critic((48, 96, 192, 320, 448))

    def forward(self, real, z):
        fake = self.painter(z)
        critic_loss = F.softplus(-self.critic(real)) + F.softplus(self.critic(fake.detach()))
        painter_loss = F.softplus(-self.critic(fake))
        return critic_loss.mean() + painter_loss.mean()


def adversarial_pair(batch=48):
    return AdversarialPair(), (torch.randn(batch, 3, 128, 128), torch.randn(batch, 160))


# --- 18. encoder-decoder transformer -----------------------------------------------------------


class SeqEncoderLayer(nn.Module):
    """Pre-norm self-attention and feed-forward layer."""

    def __init__(self, dim, heads, ff, dropout):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(
            nn.Linear(dim, ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(ff, dim)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        h = self.n1(x)
        x = x + self.drop(self.attn(h, h, h, need_weights=False)[0])
        return x + self.drop(self.ff(self.n2(x)))


class SeqDecoderLayer(nn.Module):
    """Pre-norm causal self-attention, cross-attention and feed-forward layer."""

    def __init__(self, dim, heads, ff, dropout):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.n1, self.n2, self.n3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(
            nn.Linear(dim, ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(ff, dim)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x, memory, mask):
        h = self.n1(x)
        x = x + self.drop(self.self_attn(h, h, h, attn_mask=mask, need_weights=False)[0])
        h = self.n2(x)
        x = x + self.drop(self.cross_attn(h, memory, memory, need_weights=False)[0])
        return x + self.drop(self.ff(self.n3(x)))


class Translator(nn.Module):
    """Encoder-decoder with sinusoidal positions and a label-smoothed loss."""

    def __init__(self, vocab=20000, dim=512, heads=8, ff=1792, enc=7, dec=5, dropout=0.1):
        super().__init__()
        self.dim = dim
        self.embed = nn.Embedding(vocab, dim)
        nn.init.normal_(self.embed.weight, std=dim**-0.5)
        self.enc = nn.ModuleList(SeqEncoderLayer(dim, heads, ff, dropout) for _ in range(enc))
        self.dec = nn.ModuleList(SeqDecoderLayer(dim, heads, ff, dropout) for _ in range(dec))
        self.enc_norm, self.dec_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def place(self, ids):
        pos = torch.arange(ids.shape[1], device=ids.device).float()[:, None]
        rate = torch.arange(0, self.dim, 2, device=ids.device).float() / self.dim
        angle = pos * torch.exp(-math.log(10000.0) * rate)
        table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)
        return self.drop(self.embed(ids) * math.sqrt(self.dim) + table)

    def forward(self, source, target):
        memory = self.place(source)
        for layer in self.enc:
            memory = layer(memory)
        memory = self.enc_norm(memory)
        x = self.place(target[:, :-1])
        n = x.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        for layer in self.dec:
            x = layer(x, memory, mask)
        logits = F.linear(self.dec_norm(x), self.embed.weight)
        return F.cross_entropy(
            logits.flatten(0, 1).float(), target[:, 1:].flatten(), label_smoothing=0.1
        )


def translator(batch=24):
    source = torch.randint(0, 20000, (batch, 256))
    return Translator(), (source, torch.randint(0, 20000, (batch, 193)))
