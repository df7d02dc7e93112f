"""From Estimator programs to Keras, a whole file at a time; a file that cannot be converted says why.

rewriter.py         what expressions mean, and a file's text with parts of it written anew
contrib_layers.py   everyday names of tf.contrib as the calls of V1's core that the others read
keras_of_v1.py      names of TensorFlow 1's Keras that are tf.keras's own
model_fn/           a model_fn, taken apart: statements for each mode, its network, layers, losses, optimizers
model/              a model_fn becomes a model, a train_op the optimizer of compile; heads, averages, signatures
hooks/, classes/    hooks become callbacks; subclasses of Estimators
job/                RunConfig, Estimators, canned ones, fit, data, SavedModels, flags, clusters
program/            programs of several files; rule.py: what of it the scan says
helpers.py          functions that converted programs bring along
convert_file.py     all of it for a file
"""
