"""Kernel benchmarks: what `traincast calibrate` measures, and the same as one file to carry.

The modules that `emit` joins import torch, numpy and the standard library alone, besides each
other; names at their top level are unique among them.
"""
