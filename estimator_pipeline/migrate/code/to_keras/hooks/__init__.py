"""Conversion of session hooks to callbacks, or their removal if they only log."""
