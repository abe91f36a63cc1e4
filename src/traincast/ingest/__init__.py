"""Model sources to graphs: the built-in zoo, PyTorch, Transformers, ONNX, Paleo and JSON."""

from traincast.ingest.references import resolve, split_reference, zoo_graph, zoo_names

__all__ = ["resolve", "split_reference", "zoo_graph", "zoo_names"]
