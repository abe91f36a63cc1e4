"""Collects the convolutions of many image networks, as the table in `measure/bench/shapes.py`.

    python benchmarks/collect_shapes.py [--most 1600] > table.txt

Networks of torchvision and timm are built without weights and run once on shapes alone. Shapes
that differ little (in the logarithms of channels and size) are thinned to the most used of them.
Prints one entry a shape, most used first: `cin,cout,size,kernel` and what differs from the usual:
`w` the kernel's width, `s` stride, `g` groups, `p` padding.
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from traincast.ingest.pytorch.sources import declare_torchvision_ops

TORCHVISION = """\
alexnet vgg11 vgg13 vgg16_bn vgg19 resnet18 resnet34 resnet50 resnet152 resnext50_32x4d
resnext101_64x4d wide_resnet50_2 densenet121 densenet161 densenet201 googlenet inception_v3
squeezenet1_0 squeezenet1_1 shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x2_0 mobilenet_v2
mobilenet_v3_small mobilenet_v3_large mnasnet0_5 mnasnet1_0 mnasnet1_3 efficientnet_b0
efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 efficientnet_v2_s
efficientnet_v2_m efficientnet_v2_l regnet_x_400mf regnet_x_800mf regnet_x_1_6gf regnet_x_3_2gf
regnet_x_8gf regnet_x_16gf
regnet_y_400mf regnet_y_800mf regnet_y_1_6gf regnet_y_3_2gf regnet_y_8gf
regnet_y_16gf regnet_y_32gf convnext_tiny convnext_base convnext_large
swin_t swin_b swin_v2_s vit_b_16 vit_b_32 vit_l_16 maxvit_t fcn_resnet50 deeplabv3_resnet50
lraspp_mobilenet_v3_large
"""
TIMM = """\
resnet26d resnet34 resnet50d resnet101 resnetv2_50 resnetv2_101x1_bit resnetaa50
resnet51q ecaresnet50d seresnet50 seresnext50_32x4d skresnet34 skresnext50_32x4d wide_resnet101_2
resnest14d resnest50d resnest101e res2net50_26w_4s res2net101_26w_4s res2next50 resnetrs50
resnetrs101 gernet_s gernet_m gernet_l repvgg_a0 repvgg_a2 repvgg_b1 repvgg_b3 dla34 dla60 dla102
dla60_res2net dpn68 dpn92 dpn107 hrnet_w18_small hrnet_w18 hrnet_w32 hrnet_w48 densenetblur121d
vovnet39a ese_vovnet39b ese_vovnet19b_dw selecsls42b selecsls60 cspresnet50 cspresnext50
cspdarknet53 darknet53 darknetaa53 cs3darknet_m cs3darknet_l xception xception41 xception65
inception_v4 inception_resnet_v2 inception_next_tiny nasnetalarge pnasnet5large nfnet_f0 nfnet_l0
eca_nfnet_l0 dm_nfnet_f1 nf_resnet50 nf_regnet_b1 efficientnet_lite0 efficientnet_el
efficientnet_es tf_efficientnetv2_b0 tf_efficientnet_b6 tf_efficientnet_b7 mixnet_s mixnet_m
mixnet_l mixnet_xl fbnetc_100 fbnetv3_b spnasnet_100 semnasnet_100 mobilenetv1_100
mobilenetv2_140 mobilenetv3_rw mobilenetv4_conv_small mobilenetv4_conv_medium
mobilenetv4_conv_large mobilenetv4_hybrid_medium mobileone_s1 mobilevit_xxs mobilevit_s
mobilevitv2_100 edgenext_small edgenext_base fastvit_t8 fastvit_sa12 ghostnet_100 ghostnetv2_100
rexnet_100 rexnet_200 rexnetr_200 hardcorenas_a lcnet_100 tinynet_a tinynet_c regnetx_002
regnetx_032 regnetx_080 regnetx_160 regnety_004 regnety_016 regnety_080 regnety_160 regnetz_c16
regnetz_d8 convnext_atto convnext_nano convnextv2_tiny convnextv2_base convmixer_768_32
convmixer_1536_20 coatnet_0_rw_224 coat_lite_small coatnet_1_rw_224 maxvit_tiny_rw_224 levit_256
levit_conv_192 poolformer_s12 poolformerv2_s24 pvt_v2_b1 pvt_v2_b3 twins_svt_small
twins_pcpvt_base swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 vit_small_patch16_224
vit_base_patch8_224 vit_huge_patch14_224 deit_small_patch16_224 beit_base_patch16_224
cait_s24_224 crossvit_15_240 convit_small xcit_small_12_p16_224 visformer_small nest_tiny
tnt_s_patch16_224 volo_d1_224 focalnet_tiny_srf gcvit_tiny davit_tiny efficientformer_l1
efficientformerv2_s1 efficientvit_b1 efficientvit_m2 repvit_m1 tiny_vit_11m_224 hgnet_small
hgnetv2_b2 starnet_s2 rdnet_tiny mambaout_tiny hiera_tiny_224 nextvit_small hieradet_small
sequencer2d_s resmlp_24_224 mixer_b16_224 gmlp_s16_224 eva02_small_patch14_224 samvit_base_patch16
vitamin_small_224 tresnet_m legacy_seresnet50 legacy_senet154
"""


class Convolutions(TorchDispatchMode):
    """Counts the convolutions that run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: Counter[tuple[int, ...]] = Counter()
        self.transposed: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            x, w, _, stride, padding, dilation, transposed, _, groups = args
            square = x.dim() == 4 and x.shape[2] == x.shape[3] and len(set(stride)) == 1
            if square and max(dilation) == 1:
                kh, kw = w.shape[2:]
                usual = list(padding) == [kh // 2, kw // 2]
                if usual or len(set(padding)) == 1:
                    out = w.shape[1] * groups if transposed else w.shape[0]
                    key = (x.shape[1], out, x.shape[2], kh, kw, stride[0], groups,
                           -1 if usual else padding[0])  # fmt: skip
                    (self.transposed if transposed else self.plain)[key] += 1
        return func(*args, **(kwargs or {}))


def build(name: str, library: str) -> tuple[torch.nn.Module, int]:
    import timm
    import torchvision

    if library == "timm":
        network = timm.create_model(name)
        size = network.default_cfg.get("input_size", (3, 224, 224))[-1]
        return network, size
    usual: dict[str, Any] = {}
    if name in ("inception_v3", "googlenet"):
        usual["init_weights"] = False
    if "fcn" in name or "lab" in name or "lraspp" in name:
        usual["weights_backbone"] = None
    return torchvision.models.get_model(name, **usual), 299 if "inception" in name else 224


def built_on_meta(name: str, library: str) -> tuple[torch.nn.Module, int]:
    """Return a network without weights; a RegNet reads tensors back while it is built."""
    try:
        with torch.device("meta"):
            return build(name, library)
    except NotImplementedError:
        network, size = build(name, library)
        return network.to("meta"), size


def unet(seen: Convolutions) -> None:
    """Add the convolutions of a U-Net with 64 to 1024 channels at 256 pixels."""
    size, wide = 256, 64
    for level in range(5):
        first = 3 if level == 0 else wide // 2
        seen.plain[first, wide, size, 3, 3, 1, 1, -1] += 2
        seen.plain[wide, wide, size, 3, 3, 1, 1, -1] += 3
        if level < 4:
            seen.plain[2 * wide, wide, size, 3, 3, 1, 1, -1] += 1
            seen.transposed[2 * wide, wide, size // 2, 2, 2, 2, 1, 0] += 1
            seen.transposed[2 * wide, wide, size // 2, 4, 4, 2, 1, 1] += 1
            size, wide = size // 2, wide * 2


def thinned(counts: Counter[tuple[int, ...]], most: int) -> list[tuple[int, ...]]:
    """Return at most `most` shapes that spread well, most used first."""
    ordered = [shape for shape, _ in counts.most_common()]
    reach = 0.02
    while True:
        kept: dict[Any, list[tuple[float, ...]]] = {}
        chosen = []
        for shape in ordered:
            cin, cout, size, kh, kw, stride, groups, pad = shape
            kind = (kh, kw, stride, pad, groups == 1, groups == cin)
            place = tuple(math.log2(v) for v in (cin, cout, size, cin // groups))
            near = kept.setdefault(kind, [])
            if all(max(abs(a - b) for a, b in zip(place, p, strict=True)) > reach for p in near):
                near.append(place)
                chosen.append(shape)
        if len(chosen) <= most:
            return chosen
        reach *= 1.05


def entry(shape: tuple[int, ...]) -> str:
    cin, cout, size, kh, kw, stride, groups, pad = shape
    text = f"{cin},{cout},{size},{kh}"
    text += f"w{kw}" if kw != kh else ""
    text += f"s{stride}" if stride > 1 else ""
    text += f"g{groups}" if groups > 1 else ""
    return text + (f"p{pad}" if pad >= 0 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=1600)
    options = parser.parse_args()
    declare_torchvision_ops()
    seen, built = Convolutions(), 0
    named = [(n, "torchvision") for n in TORCHVISION.split()] + [(n, "timm") for n in TIMM.split()]
    for name, library in named:
        before = seen.plain.copy()
        try:
            network, size = built_on_meta(name, library)
            network.train()
            with torch.device("meta"), seen, torch.no_grad():
                network(torch.zeros(2, 3, size, size))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
            continue
        built += seen.plain != before
    unet(seen)
    print(f"{built} networks, {len(seen.plain)} shapes, {len(seen.transposed)} transposed",
          file=sys.stderr)  # fmt: skip
    for counts, most in ((seen.plain, options.most), (seen.transposed, 24)):
        chosen = thinned(counts, most)
        print(f"{len(chosen)} kept", file=sys.stderr)
        print(textwrap.fill(" ".join(map(entry, chosen)), 99, break_on_hyphens=False), end="\n\n")


if __name__ == "__main__":
    main()
