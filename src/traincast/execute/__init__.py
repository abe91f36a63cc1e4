"""Run a layer-wise plan for real on torch.distributed, with the mathematics of one device."""
