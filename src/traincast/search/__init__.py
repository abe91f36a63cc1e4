"""Search: many settings of a run, and which of them is best."""
