"""Figures of Viebke et al. 2019 (HPCS, arXiv 1906.01992) and CHAOS (arXiv 1702.07908).

Published ones are recalled and unverified; computed ones were evaluated from the equations by hand,
outside this code. Both are typed from the project's reference on these papers.
"""

from __future__ import annotations

from pathlib import Path

NETWORKS = ("mnist-small", "mnist-medium", "mnist-large")
COUNTS = (1, 15, 30, 60, 120, 180, 240, 480, 960, 1920, 3840)

# Computed from the equations: (network, model) to seconds at COUNTS.
SECONDS = {
    ("mnist-small", "a"): (33102.52, 2395.36, 1304.54, 778.03, 524.22, 519.79, 532.62, 393.12,
                           326.00, 291.56, 275.43),
    ("mnist-small", "b"): (35497.38, 2555.43, 1384.79, 818.38, 544.62, 540.18, 553.02, 403.54,
                           331.42, 294.49, 277.12),
    ("mnist-medium", "a"): (373688.72, 25440.21, 13001.97, 6791.24, 3698.13, 3703.96, 3790.88,
                            2206.00, 1432.37, 1046.00, 852.81),
    ("mnist-medium", "b"): (407738.90, 27710.77, 14137.53, 7359.32, 3982.46, 3988.29, 4075.21,
                            2348.45, 1503.89, 1082.04, 871.12),
    ("mnist-large", "a"): (926369.22, 63360.83, 32524.73, 17100.68, 9420.16, 9414.66, 9432.16,
                           5575.02, 3649.27, 2685.45, 2206.36),
    ("mnist-large", "b"): (1064395.20, 71444.30, 35967.40, 18222.95, 9382.23, 9376.72, 9394.23,
                           4956.99, 2741.18, 1632.34, 1080.73),
}  # fmt: skip

# Published, model A: minutes at 480, 960, 1920, 3840 threads.
EXTRAPOLATED = {
    "mnist-small": (6.6, 5.4, 4.9, 4.6),
    "mnist-medium": (36.8, 23.9, 17.4, 14.2),
    "mnist-large": (92.9, 60.8, 44.8, 36.8),
}

# Computed, model A at 240 threads: sequential, training, validation, test, memory, total; seconds.
BREAKDOWN = {
    "mnist-small": (12.1195, 246.8094, 24.5961, 4.0994, 245.0000, 532.6243),
    "mnist-medium": (12.1195, 2831.9467, 237.0557, 39.5093, 670.2500, 3790.8812),
    "mnist-large": (1211.6348, 7135.9350, 486.0763, 81.0127, 517.5000, 9432.1588),
}

# Small network, model A, minutes by (threads, images times) at 70, 140, 280, 560 epochs.
SCALING_COMPUTED = {
    (240, 1): (8.88, 17.55, 34.90, 69.60),
    (240, 2): (17.55, 34.90, 69.60, 139.00),
    (240, 4): (34.90, 69.60, 139.00, 277.80),
    (480, 1): (6.55, 12.90, 25.60, 51.00),
    (480, 2): (12.90, 25.60, 51.00, 101.80),
    (480, 4): (25.60, 51.00, 101.80, 203.40),
}
SCALING_PUBLISHED = {
    (240, 1): (8.9, 17.6, 35.0, 69.7),
    (240, 2): (17.6, 35.0, 69.7, 139.3),
    (240, 4): (35.0, 69.7, 139.3, 278.3),
    (480, 1): (6.6, 12.9, 25.6, 51.1),
    (480, 2): (12.9, 25.6, 51.1, 101.9),
    (480, 4): (25.6, 51.1, 101.9, 203.6),
}

# CHAOS, large network on a Xeon Phi 7120P: hours by threads.
MEASURED_LARGE_H = {1: 295.5, 15: 19.7, 30: 9.9, 60: 5.0, 244: 2.9}

TABLE = Path(__file__).parents[4] / "shared" / "data" / "viebke_tables.csv"
