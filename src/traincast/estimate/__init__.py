"""Estimators: seconds for each kernel of a program on a device."""
