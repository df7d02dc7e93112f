"""The one place that knows which TensorFlow this is; everybody else imports `tf` from here."""

import tensorflow

if tensorflow.__version__.startswith('1.'):
    tf = tensorflow
else:
    tf = tensorflow.compat.v1

ModeKeys = tensorflow.estimator.ModeKeys
EstimatorSpec = tensorflow.estimator.EstimatorSpec
