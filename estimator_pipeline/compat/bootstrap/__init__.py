"""Steps of `compat.install()` before TensorFlow is used: import paths, lazy modules, and the version of Keras.

These steps do not change how Estimators behave; `compat/patches` does. Names of TensorFlow 1.15 that moved are in
`compat/moved_names`.
"""
