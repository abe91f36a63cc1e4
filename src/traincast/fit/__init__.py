"""The generic model: an expression of time whose constants are fitted to a table of runs."""
