"""Conversion of Estimator programs to Keras, one file at a time, or the reason why not.

rewriter.py         resolves expressions and rewrites parts of a file's text
contrib_layers.py   converts common tf.contrib calls to the tf.compat.v1 calls that the other modules read
keras_of_v1.py      names of TensorFlow 1's Keras that are the same in tf.keras
model_fn/           analysis of a model_fn: statements by mode, network, layers, losses, optimizers
model/              model_fn to Keras model, train_op to optimizer; heads, moving averages, signatures
hooks/              hooks to callbacks
job/                RunConfig, Estimators, canned Estimators, fit, datasets, SavedModels, flags, clusters
program/            what other files of the program use; rule.py is the rule that the scan uses
helpers.py          helper functions that converted programs include
convert_file.py     the conversion of one file
"""
