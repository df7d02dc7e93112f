"""All models, by name."""

from .base import MODELS, get_model_fn
from . import cnn, mlp  # noqa: F401  (they register themselves)

__all__ = ['MODELS', 'get_model_fn']
