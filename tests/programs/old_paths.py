"""Every way in which programs of the last ten years got hold of tf.estimator. Prints what does not hold."""

import importlib

import tensorflow as tf

failed = []


def check(what, holds):
    if not holds:
        failed.append(what)


# The attribute.
V2 = tf.estimator.Estimator
V1 = tf.compat.v1.estimator.Estimator
check("tf.compat.v2.estimator", tf.compat.v2.estimator.Estimator is V2)
check("V2 is a V1", issubclass(V2, V1) and V1 is not V2)
check("hasattr and dir", hasattr(tf, "estimator") and "estimator" in dir(tf))
check("exporters", tf.estimator.BestExporter is tf.compat.v1.estimator.BestExporter)
check("v1 alone has inputs", not hasattr(tf.estimator, "inputs") and hasattr(tf.compat.v1.estimator, "inputs"))

# Imports of it.
from tensorflow import estimator as from_tensorflow
from tensorflow.compat.v1 import estimator as from_v1
from tensorflow.compat.v2 import estimator as from_v2
from tensorflow.estimator import Estimator as imported_class
from tensorflow.estimator.export import ServingInputReceiver

import tensorflow.compat.v1 as tf1
import tensorflow.compat.v1.estimator
import tensorflow.compat.v2 as tf2
import tensorflow.estimator
import tensorflow.estimator as imported
import tensorflow.estimator.experimental
import tensorflow._api.v2.compat.v1.estimator as generated_v1

check("from tensorflow import estimator", from_tensorflow.Estimator is V2)
check("import tensorflow.estimator as", imported.Estimator is V2)
check("import tensorflow.estimator", tensorflow.estimator.Estimator is V2)
check("import tensorflow.compat.v1.estimator", tensorflow.compat.v1.estimator.Estimator is V1)
check("from tensorflow.estimator import Estimator", imported_class is V2)
check("from tensorflow.compat.v1 import estimator", from_v1.Estimator is V1)
check("from tensorflow.compat.v2 import estimator", from_v2.Estimator is V2)
check("import tensorflow.compat.v1 as tf", tf1.estimator.Estimator is V1)
check("import tensorflow.compat.v2 as tf", tf2.estimator.Estimator is V2)
check("tensorflow._api", generated_v1.Estimator is V1)
check("a submodule", tf.estimator.export.ServingInputReceiver is ServingInputReceiver)
check("experimental", tensorflow.estimator.experimental.stop_if_no_decrease_hook is not None)
check("importlib", importlib.import_module("tensorflow.estimator").Estimator is V2)

# Keras.
from tensorflow import keras
from tensorflow.keras.estimator import model_to_estimator

check("tf.keras.estimator", tf.keras.estimator.model_to_estimator is model_to_estimator)
check("from tensorflow import keras", keras.estimator.model_to_estimator is model_to_estimator)
check("v1 keras", tf.compat.v1.keras.estimator.model_to_estimator is not model_to_estimator)

# Private paths, as deepctr, EasyRec, tensorflow-ranking and others have them.
import tensorflow.python.estimator
from tensorflow.python.distribute import estimator_training
from tensorflow.python.estimator import estimator, exporter, gc, keras as estimator_keras, model_fn, run_config
from tensorflow.python.estimator import training, util
from tensorflow.python.estimator.canned import baseline, dnn, dnn_linear_combined, head, linear
from tensorflow.python.estimator.canned import metric_keys, optimizers, parsing_utils, prediction_keys
from tensorflow.python.estimator.canned.head import _Head, _multi_class_head_with_softmax_cross_entropy_loss
from tensorflow.python.estimator.canned.optimizers import get_optimizer_instance
from tensorflow.python.estimator.estimator import Estimator
from tensorflow.python.estimator.estimator_lib import DNNClassifier
from tensorflow.python.estimator.export import export, export_output
from tensorflow.python.estimator.export.export import ServingInputReceiver as private_receiver
from tensorflow.python.estimator.inputs import numpy_io, pandas_io
from tensorflow.python.estimator.inputs.queues import feeding_functions
from tensorflow.python.estimator.keras import model_to_estimator as private_model_to_estimator
from tensorflow.python.estimator.run_config import RunConfig
from tensorflow_estimator.python.estimator.canned import dnn as packages_own_dnn
from tensorflow_estimator.python.estimator.canned import head as packages_own_head

check("private Estimator", Estimator is V1 and estimator.EstimatorV2 is V2)
check("private RunConfig", RunConfig is tf.estimator.RunConfig and run_config.RunConfig is RunConfig)
check("private head", _Head is packages_own_head._Head and head._Head is _Head)
check("private optimizers", optimizers.get_optimizer_instance is get_optimizer_instance)
check("private DNN", DNNClassifier is tf.compat.v1.estimator.DNNClassifier)
check("private dnn module", dnn.DNNClassifierV2 is packages_own_dnn.DNNClassifierV2 is tf.estimator.DNNClassifier)
check("private linear", linear.LinearClassifierV2 is tf.estimator.LinearClassifier)
check("private baseline", baseline.BaselineClassifierV2 is tf.estimator.BaselineClassifier)
check("private dnn_linear", dnn_linear_combined.DNNLinearCombinedClassifierV2 is not None)
check("private model_fn", model_fn.EstimatorSpec is tf.estimator.EstimatorSpec)
check("private ModeKeys", model_fn.ModeKeys is tf.estimator.ModeKeys)
check("private keras", private_model_to_estimator is estimator_keras.model_to_estimator)
check("private export", private_receiver is ServingInputReceiver is export.ServingInputReceiver)
check("private export_output", export_output.PredictOutput is tf.estimator.export.PredictOutput)
check("private exporter", exporter.LatestExporter is tf.estimator.LatestExporter)
check("private inputs", numpy_io.numpy_input_fn is tf.compat.v1.estimator.inputs.numpy_input_fn)
check("private pandas", pandas_io.pandas_input_fn is tf.compat.v1.estimator.inputs.pandas_input_fn)
check("private parsing", parsing_utils.classifier_parse_example_spec is not None)
check("private training", training.train_and_evaluate is tf.estimator.train_and_evaluate)
check("private names", metric_keys.MetricKeys.LOSS == "loss" and prediction_keys.PredictionKeys.LOGITS == "logits")
check("private gc", gc._largest_export_versions(2)([gc.Path("a", 1), gc.Path("b", 3)]) == [gc.Path("a", 1), gc.Path("b", 3)])
check("private util", callable(util.fn_args))
check("private queues", feeding_functions is not None)
check("a private function", callable(_multi_class_head_with_softmax_cross_entropy_loss))
check("estimator_training", callable(estimator_training.train_and_evaluate))

# TPU names of programs that take another way on CPU.
from tensorflow.python.tpu import tpu_embedding

check("TPUEstimator is there", issubclass(tf.compat.v1.estimator.tpu.TPUEstimator, V1))
check("TPUEstimatorSpec", tf.compat.v1.estimator.tpu.TPUEstimatorSpec is not None)
check("isinstance against a TPU class", not isinstance(3, tpu_embedding.TPUEmbedding))

for what in failed:
    print("does not hold:", what)
print("checked")
