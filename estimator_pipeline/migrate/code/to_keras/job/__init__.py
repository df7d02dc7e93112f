"""Conversion of Estimators, RunConfig, data, training, evaluation, exports and flags."""
