"""Conversion of a Keras 2 program with layers to Keras 3, without imports of this package or of tf_keras."""

from __future__ import annotations
