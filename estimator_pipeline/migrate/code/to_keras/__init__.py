"""From Estimator programs to Keras, a whole file at a time; a file that cannot be converted says why.

reading.py          what expressions mean, and a file's text with parts of it written anew
slicing.py, network.py   a model_fn, taken apart: statements for each mode; which of them are its network
layers.py, arithmetic.py     V1's layers, initializers; losses, metrics, schedules, optimizers
modelling.py, training_step.py   a model_fn becomes a model; a train_op the optimizer of compile
alternating.py, apart.py   several optimizers; predictions of another network
averages.py, heads.py, signatures.py   averages of the weights; specs that a head makes; export outputs
variables.py, recurrent.py   variables that are looked up in, tables; recurrent cells
canned.py, flags.py  canned Estimators, feature columns; V1's flags
configuration.py, jobs.py, training.py, datasets.py, exporting.py   RunConfig, Estimators, fit, data, SavedModels
clusters.py, leftovers.py    what a program asks of its cluster; what goes with a construct that is gone
helpers.py          functions that converted programs bring along
conversion.py       all of it for a file; rule.py: what of it the scan says
"""
