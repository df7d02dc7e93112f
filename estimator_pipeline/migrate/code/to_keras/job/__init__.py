"""Everything of a program beside its model: Estimators, RunConfig, data, training, evaluation, exports, flags."""
