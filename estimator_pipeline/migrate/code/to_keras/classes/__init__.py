"""Conversion of subclasses of Estimator."""
