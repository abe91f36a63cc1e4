"""From priced kernels to a step: the two clocks, the timeline, the prediction."""
