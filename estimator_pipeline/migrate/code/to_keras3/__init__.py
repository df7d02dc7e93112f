"""From a Keras program by layers to one of Keras 3, which imports neither this package nor tf_keras."""

from __future__ import annotations
