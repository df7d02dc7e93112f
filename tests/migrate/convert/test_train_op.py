"""How a model_fn trains: what is written for its train_op, and what stays, with the line."""

from __future__ import annotations

import pytest

from tests.migrate.convert.programs import program

STEP = "tf.train.get_global_step()"


def applied(lines: str, pairs: str = "gvs") -> str:
    return (f"optimizer = tf.train.AdamOptimizer(0.1)\n{lines}\n"
            f"train_op = optimizer.apply_gradients({pairs}, global_step={STEP})")  # fmt: skip


COMPUTE = "gvs = optimizer.compute_gradients(loss)\n"
UNZIP = "grads, variables = zip(*optimizer.compute_gradients(loss))\n"
CLIPS = [
    (applied(COMPUTE.strip()), "Adam(0.1, epsilon=1e-8)"),
    (applied("gvs = optimizer.compute_gradients(loss, var_list=tf.trainable_variables())"), "Adam(0.1, epsilon=1e-8)"),
    (applied(f"{COMPUTE}grads = [g for g, v in gvs]\nvariables = [v for g, v in gvs]\n"
             "clipped = tf.clip_by_global_norm(grads, params['rate'])[0]", "list(zip(clipped, variables))"),
     "global_clipnorm=params['rate'])"),
    (applied(f"{UNZIP}grads = [None if g is None else tf.clip_by_norm(g, 2.0) for g in grads]",
             "zip(grads, variables)"),
     "clipnorm=2.0)"),
    (applied(f"{COMPUTE}gvs = [(tf.clip_by_value(g, -0.1, 0.1), v) for g, v in gvs if g is not None]"),
     "clipvalue=0.1)"),
    (applied(f"{COMPUTE}gvs = [(tf.clip_by_norm(t=g, clip_norm=3.0), v) for g, v in gvs]").replace(
        "AdamOptimizer(0.1)", "GradientDescentOptimizer(learning_rate=0.1)"), "SGD(0.1, clipnorm=3.0)"),
]  # fmt: skip


@pytest.mark.parametrize(("train_op", "written"), CLIPS)
def test_gradients_of_all_variables(convert_text, train_op, written):
    file = convert_text(program(TRAIN_OP=train_op))
    assert written in file.after and "clip_by" not in file.after, file.kept_as_estimator


def optimize_loss(**options: str) -> str:
    options = {"learning_rate": "0.1", "optimizer": "'SGD'", **options}
    written = ", ".join(f"{name}={value}" for name, value in options.items())
    return f"train_op = tf.contrib.layers.optimize_loss(loss, {STEP}, {written})"


CONTRIB = [
    (optimize_loss(), "optimizers.SGD(0.1)"),
    (optimize_loss(optimizer="'Momentum'"), "optimizers.SGD(0.1, momentum=0.9)"),
    (optimize_loss(optimizer="tf.train.AdamOptimizer", clip_gradients="5.0"),
     "Adam(0.1, epsilon=1e-8, global_clipnorm=5.0)"),
    (optimize_loss(optimizer="lambda lr: tf.train.MomentumOptimizer(lr, 0.5)"), "SGD(0.1, momentum=0.5)"),
    (optimize_loss(optimizer="tf.train.AdamOptimizer(0.3)", learning_rate="None"), "Adam(0.3, epsilon=1e-8)"),
    (optimize_loss(summaries="['loss']"), "#     summaries=['loss']"),
    (f"train_op = tf.contrib.training.create_train_op(loss, tf.train.AdamOptimizer(0.1), {STEP})", "Adam(0.1,"),
]  # fmt: skip


@pytest.mark.parametrize(("train_op", "written"), CONTRIB)
def test_training_of_contrib(convert_text, train_op, written):
    file = convert_text(program(TRAIN_OP=train_op))
    assert written in file.after, file.kept_as_estimator or file.after


CROSS = "loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)\n"
LOSSES = [
    ("loss = tf.losses.sparse_softmax_cross_entropy(labels, logits, weights=features['w'])",
     "loss = weighted_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True), "
     "features['w'])"),
    ("loss = tf.losses.log_loss(labels, tf.nn.sigmoid(logits))", "tf.reduce_mean(log_losses(labels, "),
    ("loss = tf.losses.mean_squared_error(labels, logits, reduction=tf.losses.Reduction.SUM)",
     "loss = tf.reduce_sum(tf.math.squared_difference(tf.cast(labels, tf.float32), logits))"),
    (CROSS + "loss += tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables() if 'kernel' in v.name])",
     "[tf.nn.l2_loss(v) for v in self.trainable_variables if 'kernel' in v.name]"),
    ("loss = tf.losses.absolute_difference(labels, logits - 1.0, features['w'])",
     "weighted_mean(tf.abs(tf.subtract(tf.cast(labels, tf.float32), logits - 1.0)), features['w'])"),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "written"), LOSSES)
def test_a_loss(convert_text, loss, written):
    file = convert_text(program(LOSS=loss))
    assert written in file.after, file.kept_as_estimator or file.after


def of_variables(test: str) -> str:
    return f"{CROSS}loss += tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables() if {test}])"


LOSSES_THAT_STAY = [
    (of_variables("'logits' in v.name"), 9, "a choice of variables by names"),
    (of_variables("v.name.endswith('kernel:0')"), 9, "a choice of variables by names"),
    (of_variables("v.op.name != 'bias'"), 9, "a choice of variables by names"),
    (CROSS + "loss += tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables('scope')])", 9, "the arguments"),
    (CROSS + "loss += tf.add_n([tf.nn.l2_loss(v) for v in tf.global_variables()])", 9, "tf.global_variables"),
    ("loss = tf.losses.mean_squared_error(labels, logits, weights=2.0, reduction=tf.losses.Reduction.SUM)", 8,
     "weights and reduction"),
    ("loss = tf.losses.huber_loss(labels, logits, weights=features['w'])", 8, "weights or reduction"),
    ("loss = tf.losses.mean_squared_error(labels, logits, reduction=params['reduction'])", 8, "reduction of"),
    ("loss = tf.losses.mean_squared_error(labels, logits, loss_collection='mine')", 8, "loss_collection of"),
    ("loss = tf.losses.mean_pairwise_squared_error(labels, logits)", 8, "mean_pairwise_squared_error"),
    (CROSS + "loss += tf.add_n(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES, 'a'))", 9,
     "scope of tf.get_collection"),
    (CROSS + "loss += tf.add_n(tf.get_collection('losses'))", 9, "the arguments of tf.get_collection"),
    (f"{CROSS.strip()} + tf.losses.get_regularization_loss('a')", 8, "scope of tf.losses.get_regularization_loss"),
    (CROSS + "tf.losses.add_loss(loss)", 9, "neither of the network"),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "line", "reason"), LOSSES_THAT_STAY)
def test_losses_that_stay(convert_text, loss, line, reason):
    file = convert_text(program(LOSS=loss))
    assert not file.keras and file.verdict.line == line and reason in file.kept_as_estimator, file.kept_as_estimator


def test_a_layer_whose_name_has_the_text_of_a_test_of_names(convert_text):
    network = 'logits = tf.layers.dense(features["x"], 3, name="unbiased")'
    assert "a choice of variables" in convert_text(
        program(NETWORK=network, LOSS=of_variables("'bias' not in v.name"))).kept_as_estimator  # fmt: skip


def test_a_sum_on_several_replicas_stays(convert_text):
    """V1 does not divide the loss of a replica by their number where the last reduction was a sum."""
    strategy = "config=tf.estimator.RunConfig(train_distribute=tf.distribute.MirroredStrategy()), params="
    assert (
        "other than a mean" in convert_text(program(LOSS=LOSSES[2][0]).replace("params=", strategy)).kept_as_estimator
    )
    assert convert_text(program(LOSS=LOSSES[0][0]).replace("params=", strategy)).keras


def test_regularizers_that_the_loss_does_not_add(convert_text):
    """Only those of the network count, not a text elsewhere: `compile` would add them."""
    regularizer = "kernel_regularizer=tf.keras.regularizers.L2(0.1)"
    network = f'logits = tf.layers.dense(features["x"], 3, {regularizer})'
    assert "def compute_loss" in convert_text(program(NETWORK=network)).after
    adds = CROSS + "loss = loss + tf.losses.get_regularization_loss()"
    assert "sum(self.losses)" in convert_text(program(NETWORK=network, LOSS=adds)).after
    for collection in ("tf.add_n(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES))", "tf.add_n(found)"):
        more = f"{CROSS}found = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)\nloss = loss + {collection}"
        assert "self.losses" in convert_text(program(NETWORK=network, LOSS=more)).after
    more = f"loss = {CROSS.partition('= ')[2].strip()} + sum(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES))"
    assert "class " not in convert_text(program(NETWORK=network, LOSS=more)).after
    elsewhere = program().replace("def main():", f"def other():\n    return dict({regularizer})\n\n\ndef main():")
    assert "class " not in convert_text(elsewhere).after


def minimize(optimizer: str, before: str = "") -> str:
    return f"{before}train_op = {optimizer}.minimize(loss, {STEP})"


MOMENTUM = "tf.train.MomentumOptimizer(0.1, 0.9)"
EMBEDDED = 'net = tf.keras.layers.Embedding(9, 3)(features["x"])\nlogits = tf.layers.dense(tf.layers.flatten(net), 3)'
# Part of the program -> the line that is named, and the reason.
STAYS = [
    (applied("variables = tf.trainable_variables()[:2]\ngrads = tf.gradients(loss, variables)",
             "zip(grads, variables)"), 14, "not those of the loss for all variables"),
    (applied("gvs = optimizer.compute_gradients(loss, tf.trainable_variables('logits'))"), 13,
     "not those of the loss for all variables"),
    (applied("gvs = optimizer.compute_gradients(loss)[:2]"), 13, "not those of the loss for all variables"),
    (applied(f"{COMPUTE}gvs = [(g, v) for g, v in gvs if 'bias' not in v.name]"), 14,
     "not those of the loss for all variables"),
    (applied(f"{COMPUTE}gvs = [(2.0 * g, v) for g, v in gvs]"), 14, "not those of the loss for all variables"),
    (applied(f"{COMPUTE}gvs = [(tf.clip_by_norm(g, 1.0), v) for g, v in reversed(gvs)]"), 14, "not those"),
    (applied(f"{UNZIP}grads = [g for g in grads if g is not None]", "zip(grads, variables)"), 14, "not those"),
    (applied(f"{COMPUTE}gvs = [(tf.clip_by_value(g, -0.2, 0.1), v) for g, v in gvs]"), 14, "not those"),
    (applied(f"{COMPUTE}gvs = [(tf.clip_by_norm(g, 1.0, axes=[0]), v) for g, v in gvs]"), 14, "not those"),
    (applied(f"{COMPUTE}gvs = [(tf.clip_by_average_norm(g, 1.0), v) for g, v in gvs]"), 14, "not those"),
    (applied(f"{COMPUTE}gvs.pop()"), 14, "gradients that are not those"),
    (applied(f"{COMPUTE}gvs[0] = (gvs[0][0] * 2.0, gvs[0][1])"), 14, "not those"),
    (applied(f"{COMPUTE}for i, (g, v) in enumerate(gvs):\n    gvs[i] = (tf.sign(g), v)"), 15, "not those"),
    (applied(f"{UNZIP}grads, _ = tf.clip_by_global_norm(grads, 1.0)\n"
             "grads = [tf.clip_by_norm(g, 1.0) for g in grads]", "zip(grads, variables)"), 15, "in several ways"),
    (applied("gvs = tf.train.GradientDescentOptimizer(0.1).compute_gradients(loss)"), 12, "another optimizer"),
    (applied(COMPUTE.strip()).replace(f", global_step={STEP}", ""), 13, "without the global step"),
    (applied(COMPUTE + "with tf.control_dependencies([tf.no_op()]):\n    gvs = [(g, v) for g, v in gvs]"), 13,
     "control_dependencies"),
    (optimize_loss(gradient_multipliers="{'a': 2.0}"), 11, "gradient_multipliers of optimize_loss"),
    (optimize_loss(variables="tf.trainable_variables('a')"), 11, "variables of optimize_loss"),
    (optimize_loss(increment_global_step="False"), 11, "increment_global_step of optimize_loss"),
    (optimize_loss(optimizer="params['optimizer']"), 11, "the optimizer params['optimizer'] of optimize_loss"),
    (optimize_loss(clip_gradients="tf.contrib.layers.adaptive_clipping_fn(0.9)"), 11, "as a function"),
    (minimize("tf.train.MomentumOptimizer(0.1, momentum=m)",
              f"m = tf.minimum(0.9, tf.cast({STEP}, tf.float32) / 10.0)\n"), 12,
     "another argument than the learning rate"),
    (minimize("tf.train.AdamOptimizer(rate)", "rate = 0.1 * tf.reduce_mean(features['x'])\n"), 11,
     "depends on a batch"),
    (minimize("tf.train.AdamOptimizer(tf.Variable(0.1, trainable=False))"), 11, "tf.Variable"),
    (minimize("optimizer", f"rate = 0.1 / (1 + tf.cast({STEP}, tf.float32))\nif params['a']:\n"
              "    optimizer = tf.train.AdamOptimizer(rate)\nelse:\n"
              "    optimizer = tf.train.FtrlOptimizer(rate)\n"), 16, "that a condition chooses"),
    (minimize("optimizer", "if params['a']:\n    optimizer = tf.train.AdamOptimizer(0.1)\nelse:\n"
              "    optimizer = tf.train.ProximalAdagradOptimizer(0.1)\n"), 15, "ProximalAdagradOptimizer"),
    (minimize("tf.contrib.opt.AdamWOptimizer(0.1)"), 11,
     "an optimizer that is not made in the model_fn"),
    (minimize(MOMENTUM) + "\ntrain_op = None", 13, "a train_op that is not optimizer.minimize"),
    (minimize("optimizer", f"optimizer = {MOMENTUM}\n") + "\noptimizer = None", 12,
     "an optimizer that is not made in the model_fn"),
]  # fmt: skip


@pytest.mark.parametrize(("train_op", "line", "reason"), STAYS)
def test_what_stays_an_estimator(convert_text, train_op, line, reason):
    file = convert_text(program(TRAIN_OP=train_op))
    assert not file.keras and "tf.estimator.EstimatorSpec" in file.after, file.after
    assert file.verdict.line == line and reason in file.kept_as_estimator, file.kept_as_estimator


def test_an_optimizer_of_a_dict_of_the_program_stays(convert_text):
    known = "OPTIMIZERS = {'sgd': tf.train.GradientDescentOptimizer, 'adam': tf.train.AdamOptimizer}\n\n\ndef model_fn"
    file = convert_text(program(TRAIN_OP=minimize("OPTIMIZERS['sgd'](0.1)")).replace("def model_fn", known, 1))
    assert file.kept_as_estimator == "line 14: an optimizer that is not made in the model_fn"


@pytest.mark.parametrize("train_op", [minimize(MOMENTUM), minimize("tf.train.RMSPropOptimizer(0.1)"), CLIPS[3][0]])
def test_sparse_gradients_stay(convert_text, train_op):
    """V1 leaves the rows of an embedding as they are that a batch does not have, their velocity included."""
    assert "sparse gradient" in convert_text(program(NETWORK=EMBEDDED, TRAIN_OP=train_op)).kept_as_estimator
    assert convert_text(program(NETWORK=EMBEDDED)).keras


@pytest.mark.parametrize("train_op", [CLIPS[2][0], optimize_loss(clip_gradients="1.0")])
def test_clipping_on_several_replicas_stays(convert_text, train_op):
    strategy = "config=tf.estimator.RunConfig(train_distribute=tf.distribute.MirroredStrategy()), params="
    text = program(TRAIN_OP=train_op).replace("params=", strategy)
    assert "on each replica" in convert_text(text).kept_as_estimator
    assert convert_text(program().replace("params=", strategy)).keras
