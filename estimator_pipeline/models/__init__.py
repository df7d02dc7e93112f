"""Models from Keras layers: `model_fn` for Estimators, compiled Keras models, and what both share.

Heads, outputs, weights of records, histograms, callbacks. Optimizers are in `models/optimizers`, what converted
programs import in `models/keras_runtime`; the models of the catalogue are in `model_fns/`.
"""
