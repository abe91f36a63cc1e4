"""Scripts that train in one framework each: they run in its environment and need ours not."""
