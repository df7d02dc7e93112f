"""What `compat.install()` does before TensorFlow is used: import paths, lazy modules, the Keras that is meant.

Nothing here changes how Estimators behave: that is in `compat/patches`. Names of TensorFlow 1.15 that moved are in
`compat/moved_names`.
"""
