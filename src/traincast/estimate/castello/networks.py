"""The authors' networks: convolutions and dense layers alone, sizes before pooling.

Layer sizes from github.com/adcastel/model_parallelism at 399b407, with the input channels of
the real networks. N_(l−1) is the previous convolution's output before pooling, as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from types import MappingProxyType

from traincast.errors import UnknownNameError
from traincast.estimate.castello.layers import Layer, Network, conv_layer, dense_layer

_PIXELS = 3 * 224 * 224
# kernel side, input channels, kernels, output side
_ALEXNET = ((11, 3, 64, 55), (5, 64, 192, 27), (3, 192, 384, 13), (3, 384, 384, 13),
            (3, 384, 256, 13))  # fmt: skip
_VGG16 = ((3, 3, 64, 224), (3, 64, 64, 224), (3, 64, 128, 112), (3, 128, 128, 112),
          (3, 128, 256, 56), (3, 256, 256, 56), (3, 256, 256, 56), (3, 256, 512, 28),
          (3, 512, 512, 28), (3, 512, 512, 28), (3, 512, 512, 14), (3, 512, 512, 14),
          (3, 512, 512, 14))  # fmt: skip
_NETWORKS: Mapping[str, tuple[tuple[tuple[int, int, int, int], ...], tuple[int, ...]]] = (
    MappingProxyType(
        {
            "alexnet": (_ALEXNET, (9216, 4096, 4096, 1000)),
            "vgg16": (_VGG16, (25088, 4096, 4096, 1000)),
        }
    )
)
NAMES = tuple(_NETWORKS)


@cache
def authors_network(name: str) -> Network:
    """Return `alexnet` or `vgg16` as the authors have them."""
    if name not in _NETWORKS:
        known = f"(known: {', '.join(NAMES)})"
        raise UnknownNameError("network of the authors", name, NAMES, known)
    convolutions, widths = _NETWORKS[name]
    layers: list[Layer] = []
    before = _PIXELS
    for side, c_in, c_out, size in convolutions:
        label = f"conv{len(layers) + 1}"
        layers.append(conv_layer(label, (side, side), (c_in, c_out), (size, size), before))
        before = c_out * size * size
    for c_in, c_out in pairwise(widths):
        layers.append(dense_layer(f"fc{len(layers) + 1}", c_in, c_out, before))
        before = c_out
    layers[0] = replace(layers[0], data_gradient=False)
    return Network(f"castello:{name}", tuple(layers))
