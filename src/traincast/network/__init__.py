"""What communication costs: collectives, their algorithms, and what NCCL achieves on real links."""

from traincast.network import allreduce, exchange, published, rooted
from traincast.network.collective import (
    Fastest,
    bytes_sent,
    collective_seconds,
    fastest,
    nccl_seconds,
)
from traincast.network.nccl import NcclBasis, nccl_basis
from traincast.network.registry import OPERATIONS, Algorithm, algorithms, find, register
from traincast.network.terms import Terms, Wire

__all__ = [
    "OPERATIONS",
    "Algorithm",
    "Fastest",
    "NcclBasis",
    "Terms",
    "Wire",
    "algorithms",
    "allreduce",
    "bytes_sent",
    "collective_seconds",
    "exchange",
    "fastest",
    "find",
    "nccl_basis",
    "nccl_seconds",
    "published",
    "register",
    "rooted",
]
