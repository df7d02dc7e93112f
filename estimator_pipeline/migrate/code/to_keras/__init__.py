"""From Estimator programs to Keras, a whole file at a time; a file that cannot be converted says why.

rewriter.py         what expressions mean, and a file's text with parts of it written anew
model_fn/           a model_fn, taken apart: statements for each mode, its network, layers, losses, optimizers
model/              a model_fn becomes a model, a train_op the optimizer of compile; heads, averages, signatures
hooks/, classes/    hooks become callbacks; subclasses of Estimators
job/                RunConfig, Estimators, canned ones, fit, data, SavedModels, flags, clusters
program/            programs of several files; rule.py: what of it the scan says
helpers.py          functions that converted programs bring along
convert_file.py     all of it for a file
"""
