"""V1 optimizers, learning rates, gradients; strategies; TF_CONFIG."""

from __future__ import annotations

from estimator_pipeline.migrate.code.catalogue.row import Row, table

__all__ = ["ROWS"]

_OPTIMIZERS = (
    *table(
        "optimizer",
        "tf.compat.v1.train.",
        (
            ("AdadeltaOptimizer", "Adadelta", "tf.keras.optimizers.Adadelta(learning_rate, rho, epsilon)"),
            ("AdagradDAOptimizer", "Adagrad; no dual averaging in Keras", "tf.keras.optimizers.Adagrad(learning_rate)"),
            ("AdagradOptimizer", "Adagrad",
             "tf.keras.optimizers.Adagrad(learning_rate, initial_accumulator_value, epsilon=0.0)"),
            ("AdamOptimizer", "Adam; epsilon is applied differently",
             "tf.keras.optimizers.Adam(learning_rate, beta_1, beta_2, epsilon)"),
            ("FtrlOptimizer", "Ftrl", "tf.keras.optimizers.Ftrl(learning_rate, ...)"),
            ("GradientDescentOptimizer", "SGD", "tf.keras.optimizers.SGD(learning_rate)"),
            ("MomentumOptimizer", "SGD with momentum; the velocity is defined differently",
             "tf.keras.optimizers.SGD(learning_rate, momentum)"),
            ("Optimizer", "tf.keras.optimizers.Optimizer", "class Mine(tf.keras.optimizers.Optimizer): ..."),
            ("ProximalAdagradOptimizer", "no Keras optimizer; Adagrad and regularisers",
             "tf.keras.optimizers.Adagrad(learning_rate)"),
            ("ProximalGradientDescentOptimizer", "no Keras optimizer; SGD and regularisers",
             "tf.keras.optimizers.SGD(learning_rate)"),
            ("RMSPropOptimizer", "RMSprop; epsilon is applied differently",
             "tf.keras.optimizers.RMSprop(learning_rate, rho, momentum, epsilon)"),
            ("SyncReplicasOptimizer", "not needed: a strategy sums the gradients",
             "with tf.distribute.MultiWorkerMirroredStrategy().scope(): ..."),
            ("experimental.DynamicLossScale", "LossScaleOptimizer",
             "tf.keras.mixed_precision.LossScaleOptimizer(inner)"),
            ("experimental.FixedLossScale", "LossScaleOptimizer",
             "tf.keras.mixed_precision.LossScaleOptimizer(inner, dynamic=False, initial_scale=scale)"),
            ("experimental.LossScale", "LossScaleOptimizer", "tf.keras.mixed_precision.LossScaleOptimizer(inner)"),
            ("experimental.MixedPrecisionLossScaleOptimizer", "LossScaleOptimizer",
             "tf.keras.mixed_precision.LossScaleOptimizer(inner)"),
            ("experimental.disable_mixed_precision_graph_rewrite", "a policy",
             "tf.keras.mixed_precision.set_global_policy('float32')"),
            ("experimental.enable_mixed_precision_graph_rewrite", "a policy",
             "tf.keras.mixed_precision.set_global_policy('mixed_float16')"),
            ("sdca_optimizer", "no Keras optimizer; Ftrl", "tf.keras.optimizers.Ftrl(...)"),
            ("sdca_fprint", "no Keras optimizer; Ftrl", "tf.keras.optimizers.Ftrl(...)"),
            ("sdca_shrink_l1", "no Keras optimizer; Ftrl", "tf.keras.optimizers.Ftrl(...)"),
        ),
    ),
    Row("minimize", "optimizer", "the optimizer of compile: fit applies the gradients",
        "model.compile(optimizer=optimizer, loss=loss)", rule="train_op"),
    Row("Optimizer subclass", "optimizer", "a tf.keras.optimizers.Optimizer subclass",
        "class Mine(tf.keras.optimizers.Optimizer):\n    def update_step(self, gradient, variable): ..."),
)  # fmt: skip

_SCHEDULE = "tf.keras.optimizers.schedules."
_RATES = table(
    "learning rate",
    "tf.compat.v1.train.",
    (
        ("cosine_decay", "CosineDecay", _SCHEDULE + "CosineDecay(learning_rate, decay_steps, alpha)"),
        ("cosine_decay_restarts", "CosineDecayRestarts",
         _SCHEDULE + "CosineDecayRestarts(learning_rate, first_decay_steps)"),
        ("exponential_decay", "ExponentialDecay",
         _SCHEDULE + "ExponentialDecay(learning_rate, decay_steps, decay_rate, staircase)"),
        ("inverse_time_decay", "InverseTimeDecay",
         _SCHEDULE + "InverseTimeDecay(learning_rate, decay_steps, decay_rate, staircase)"),
        ("linear_cosine_decay", "a custom LearningRateSchedule",
         "class Mine(tf.keras.optimizers.schedules.LearningRateSchedule):\n    def __call__(self, step): ..."),
        ("natural_exp_decay", "ExponentialDecay with exp(-decay_rate)",
         _SCHEDULE + "ExponentialDecay(learning_rate, decay_steps, math.exp(-decay_rate))"),
        ("noisy_linear_cosine_decay", "a custom LearningRateSchedule",
         "class Mine(tf.keras.optimizers.schedules.LearningRateSchedule):\n    def __call__(self, step): ..."),
        ("piecewise_constant", "PiecewiseConstantDecay", _SCHEDULE + "PiecewiseConstantDecay(boundaries, values)"),
        ("piecewise_constant_decay", "PiecewiseConstantDecay",
         _SCHEDULE + "PiecewiseConstantDecay(boundaries, values)"),
        ("polynomial_decay", "PolynomialDecay",
         _SCHEDULE + "PolynomialDecay(learning_rate, decay_steps, end_learning_rate, power, cycle)"),
    ),
)  # fmt: skip

_STEPS = table(
    "variable",
    "tf.compat.v1.train.",
    (
        ("assert_global_step", "not needed: optimizer.iterations is the step", ""),
        ("create_global_step", "optimizer.iterations", "model.optimizer.iterations"),
        ("get_global_step", "optimizer.iterations", "model.optimizer.iterations"),
        ("get_or_create_global_step", "optimizer.iterations", "model.optimizer.iterations"),
        ("global_step", "optimizer.iterations", "int(model.optimizer.iterations)"),
    ),
)

_SCOPE = "with strategy.scope():\n    model = build_model()\n    model.compile(...)"
_STRATEGIES = (
    *table(
        "strategy",
        "tf.distribute.",
        (
            ("MirroredStrategy", "the same, around building and compiling the model", _SCOPE),
            ("OneDeviceStrategy", "the same, around building and compiling the model", _SCOPE),
            ("MultiWorkerMirroredStrategy", "the same, around building and compiling the model", _SCOPE),
            ("TPUStrategy", "the same, around building and compiling the model", _SCOPE),
            ("experimental.MultiWorkerMirroredStrategy", "tf.distribute.MultiWorkerMirroredStrategy", _SCOPE),
            ("experimental.CentralStorageStrategy", "the same, around building and compiling the model", _SCOPE),
            ("experimental.TPUStrategy", "tf.distribute.TPUStrategy", _SCOPE),
            ("experimental.ParameterServerStrategy",
             "tf.distribute.ParameterServerStrategy with a ClusterCoordinator", _SCOPE),
            ("ParameterServerStrategy", "the same, with a ClusterCoordinator", _SCOPE),
        ),
    ),
    Row("tf.compat.v1.train.replica_device_setter", "strategy", "tf.distribute.ParameterServerStrategy", _SCOPE),
    Row("tf.compat.v1.train.Server", "strategy", "tf.distribute.Server", "tf.distribute.Server(cluster, job, index)"),
    Row("tf.train.ClusterSpec", "strategy", "the same", "tf.train.ClusterSpec(cluster)"),
    Row("tf.contrib.distribute.CollectiveAllReduceStrategy", "contrib", "tf.distribute.MultiWorkerMirroredStrategy",
        _SCOPE, runs=False),
)  # fmt: skip

_TF_CONFIG = (
    Row("TF_CONFIG", "tf_config", "the same: MultiWorkerMirroredStrategy reads it",
        "tf.distribute.cluster_resolver.TFConfigClusterResolver()"),
)  # fmt: skip

ROWS = (*_OPTIMIZERS, *_RATES, *_STEPS, *_STRATEGIES, *_TF_CONFIG)
