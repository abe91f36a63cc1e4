"""Sweeps: many short training runs of one family of networks, in three frameworks."""
