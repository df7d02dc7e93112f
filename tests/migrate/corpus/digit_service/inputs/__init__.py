from .npz import NpzInputs

__all__ = ['NpzInputs']
