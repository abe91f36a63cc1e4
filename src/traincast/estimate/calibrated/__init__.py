"""The calibrated estimator: kernel models fitted to what was measured on a device."""
