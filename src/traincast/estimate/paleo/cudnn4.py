"""Convolution algorithms that cuDNN 4 chose when the authors of Paleo made their demo data.

Not published: recovered from the demo's iteration times (github.com/TalwalkarLab/paleo, branch
gh-pages) by trying every assignment under the `paper` rules. For each network and batch one fits
all four devices to rounding (0.0005 ms); the next best is off by at least 0.010 ms. One entry is
ambiguous: alex_v2 conv4 at batches 64 and 128 could as well be G/F/F, with the same total.
"""

from __future__ import annotations

_NAMES = {"G": "GEMM", "F": "FFT", "T": "FFT_TILING"}

# Batch of one worker: layer forward/data/filter. Layers that are not listed use GEMM throughout.
_NIN = """
1:
2:
4:
8: conv2 F/T/G
16: conv2 F/F/F
32: conv2 F/F/F
64: conv2 T/T/F, conv3 F/G/F
128: conv2 F/T/F, conv3 F/G/G
256: conv2 T/T/F, conv3 F/F/F
512: conv2 F/G/F, conv3 T/F/G, conv4 G/G/F
1024: conv2 T/T/F, conv3 G/F/G, conv4 F/F/F
"""

_ALEX_V2 = """
1:
2:
4:
8: conv2 F/T/G
16: conv2 F/F/F
32: conv2 F/T/F
64: conv2 F/F/F, conv3 F/G/F, conv4 F/G/F, conv5 F/G/F
128: conv2 G/T/F, conv4 F/G/F, conv5 F/G/F
256: conv2 T/F/F, conv3 F/G/F, conv4 F/F/F, conv5 F/F/F, fc6 F/G/G
512: conv2 T/G/F, conv3 G/F/G, conv4 F/F/F, conv5 F/T/F
1024: conv2 T/T/F, conv3 T/G/G, conv4 F/F/F, conv5 F/F/F
"""


def _read(text: str) -> dict[int, dict[str, tuple[str, ...]]]:
    table: dict[int, dict[str, tuple[str, ...]]] = {}
    for line in text.strip().splitlines():
        batch, _, entries = line.partition(":")
        words = [entry.split() for entry in entries.split(",") if entry.strip()]
        table[int(batch)] = {
            layer: tuple(_NAMES[letter] for letter in letters.split("/"))
            for layer, letters in words
        }
    return table


CHOICES: dict[str, dict[int, dict[str, tuple[str, ...]]]] = {
    "nin": _read(_NIN),
    "alex_v2": _read(_ALEX_V2),
}
"""Network, batch of one worker, layer: algorithm forward, of data and of filter gradient."""
