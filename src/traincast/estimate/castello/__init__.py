"""Data against model parallelism on a cluster, after Castelló et al. (PDP 2021).

>>> from traincast.estimate.castello import Machine, authors_network, data_parallel, model_parallel
>>> machine = Machine(flops=4e12, memory_bandwidth=50e9, link_bandwidth=10e9 / 8)
>>> vgg = authors_network("vgg16")
>>> round(float(data_parallel(vgg, machine, batch=256, nodes=16).step), 6)
1.553477
>>> round(float(model_parallel(vgg, machine, batch=256, nodes=16).step), 3)
39.601

A. Castelló, M. Catalán, M. F. Dolz, J. I. Mestre, E. S. Quintana-Ortí, J. Duato, PDP 2021,
pp. 99-108. `network_of` makes the same model of any graph. Everything broadcasts over arrays.
"""

from traincast.estimate.castello.collectives import collective
from traincast.estimate.castello.kernels import col2im, gemm, im2col, roofline
from traincast.estimate.castello.layers import Layer, Network
from traincast.estimate.castello.lowering import network_of
from traincast.estimate.castello.machine import Machine, Rules, published_rules
from traincast.estimate.castello.networks import authors_network
from traincast.estimate.castello.step import (
    LayerTimes,
    Step,
    data_parallel,
    layer_times,
    model_parallel,
)

__all__ = [
    "Layer",
    "LayerTimes",
    "Machine",
    "Network",
    "Rules",
    "Step",
    "authors_network",
    "col2im",
    "collective",
    "data_parallel",
    "gemm",
    "im2col",
    "layer_times",
    "model_parallel",
    "network_of",
    "published_rules",
    "roofline",
]
