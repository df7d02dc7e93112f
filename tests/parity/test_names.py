"""Canonical names: what both engines call the same, recorded from TensorFlow 2.21."""

from __future__ import annotations

import pytest

from estimator_pipeline.utils.variable_names import canonical, canonical_of_layers

W = "dense/kernel"
STEP = "global_step:0"
CASES = [
    # (in an Estimator's graph, in Keras, the canonical names)
    ("v1 sgd", [W, STEP], [W, "SGD/iter:0"], [W]),
    ("v1 momentum", [W, STEP, f"{W}/Momentum:0"], [W, "V1Momentum/iter:0", f"V1Momentum/{W}/momentum:0"],
     [W, f"{W} @momentum"]),
    ("v1 adam", [W, STEP, "beta1_power:0", "beta2_power:0", f"{W}/Adam:0", f"{W}/Adam_1:0"],
     [W, "Adam/iter:0", f"Adam/{W}/m:0", f"Adam/{W}/v:0"], [W, f"{W} @m", f"{W} @v"]),
    ("v1 adam, the second one", [W, STEP, "beta1_power_1:0", "beta2_power_1:0", f"{W}/Adam:0", f"{W}/Adam_1:0"],
     [W, "Adam/iter:0", f"Adam/{W}/m:0", f"Adam/{W}/v:0"], [W, f"{W} @m", f"{W} @v"]),
    ("v1 adagrad", [W, STEP, f"{W}/Adagrad:0"], [W, "V1Adagrad/iter:0", f"V1Adagrad/{W}/accumulator:0"],
     [W, f"{W} @accumulator"]),
    ("v1 rmsprop", [W, STEP, f"{W}/RMSProp:0", f"{W}/RMSProp_1:0"],
     [W, "V1RMSProp/iter:0", f"V1RMSProp/{W}/rms:0", f"V1RMSProp/{W}/momentum:0"], [W, f"{W} @rms", f"{W} @momentum"]),
    ("v1 rmsprop, centered", [W, STEP, f"{W}/RMSProp:0", f"{W}/RMSProp_1:0", f"{W}/RMSProp_2:0"],
     [W, "V1RMSProp/iter:0", f"V1RMSProp/{W}/rms:0", f"V1RMSProp/{W}/momentum:0", f"V1RMSProp/{W}/mg:0"],
     [W, f"{W} @rms", f"{W} @mg", f"{W} @momentum"]),
    ("v1 ftrl", [W, STEP, f"{W}/Ftrl:0", f"{W}/Ftrl_1:0"],
     [W, "Ftrl/iter:0", f"Ftrl/{W}/accumulator:0", f"Ftrl/{W}/linear:0"], [W, f"{W} @accumulator", f"{W} @linear"]),
    ("keras momentum, slots made early", [W, STEP, f"SGD/{W}/momentum:0"], [W, "iter:0", f"{W}/momentum:0"],
     [W, f"{W} @momentum"]),
    ("keras sgd", [W, STEP, "SGD/decay:0", "SGD/learning_rate:0", "SGD/momentum:0"], [W, "SGD/iter:0"], [W]),
    ("keras adam", [W, STEP, f"Adam/{W}/m:0", f"Adam/{W}/v:0", "Adam/beta_1:0"],
     [W, "Adam/iter:0", f"Adam/{W}/m:0", f"Adam/{W}/v:0"], [W, f"{W} @m", f"{W} @v"]),
]  # fmt: skip


@pytest.mark.parametrize(("estimator", "keras", "names"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_both_engines_come_to_the_same(estimator, keras, names):
    assert set(canonical(estimator)) == set(canonical(keras)) == {*names, "global_step"}
    assert canonical(estimator)["global_step"] == STEP
    assert canonical(keras)[W] == W


def test_the_two_optimizers_of_a_canned_estimator():
    """A head's scope is left out; the linear optimizer's own count is not the global step."""
    linear = "linear/linear_model/age/weights"
    settings = ["learning_rate", "decay", "beta", "l1_regularization_strength", "learning_rate_power", "iter"]
    given = [W, linear, STEP, f"training/Adagrad/{W}/accumulator", "training/Adagrad/decay"]
    given += [f"training/Ftrl/{linear}/{slot}" for slot in ("accumulator", "linear")]
    given += [f"training/Ftrl/{setting}" for setting in settings]
    names = [W, linear, "global_step", f"{W} @accumulator", f"{linear} @accumulator", f"{linear} @linear"]
    assert list(canonical(given)) == names
    # Layers of a program's own that are called so are weights.
    own = ["training/norm/beta", "training/norm/gamma", "training/dense/kernel", "training/dense/kernel/Adam"]
    assert list(canonical(own)) == [*own[:3], "training/dense/kernel @m"]


def test_layers_that_are_called_like_a_setting():
    """A layer's weight `decay` is a weight: its layer has others beside it."""
    found = canonical(["gate/decay:0", "gate/kernel:0", "Adam/gate/decay/m:0", "Adam/decay:0", "Adam/iter:0"])
    assert found == {
        "gate/decay": "gate/decay:0",
        "gate/kernel": "gate/kernel:0",
        "gate/decay @m": "Adam/gate/decay/m:0",
        "global_step": "Adam/iter:0",
    }


def test_nested_layers_and_moving_statistics():
    names = ["block/conv/kernel", "block/bn/moving_mean", "block/conv/kernel/Momentum", "top/block/conv/kernel"]
    assert list(canonical(names)) == [
        "block/conv/kernel", "block/bn/moving_mean", "block/conv/kernel @momentum", "top/block/conv/kernel"
    ]  # fmt: skip


def test_a_scope_of_the_whole_model():
    trained = ["dense/kernel", "dense/bias", "dense/kernel @m", "global_step"]
    in_a_graph = ["sequential/dense/kernel", "sequential/dense/bias", "sequential/dense/kernel/Adam", "global_step"]
    in_keras = ["dense/kernel:0", "dense/bias:0", "Adam/dense/kernel/m:0", "Adam/iter:0"]
    assert list(canonical_of_layers(in_a_graph)) == list(canonical_of_layers(in_keras)) == trained
    for names in (["a/dense/kernel", "b/dense/kernel"], ["a/dense/kernel", "scale", "global_step"], ["global_step"]):
        assert list(canonical_of_layers(names)) == names


def test_copies_on_further_replicas_are_left_out():
    names = [W, f"{W}/replica_1:0", f"SGD/{W}/momentum:0", f"SGD/{W}/momentum/replica_1:0", "replica_1/kernel:0"]
    assert list(canonical(names)) == [W, f"{W} @momentum", "replica_1/kernel"]


@pytest.mark.parametrize(
    ("slots", "names"),
    [
        (["m", "v"], ["m", "v"]),
        (["m"], ["momentum"]),
        (["velocity", "momentum", "average_gradient"], ["rms", "momentum", "mg"]),
        (["accumulator", "linear"], ["accumulator", "linear"]),
    ],
    ids=["Adam", "SGD", "RMSprop", "Ftrl"],
)
def test_the_newer_optimizers_of_keras_2(slots, names):
    given = [f"{W}:0", "iteration:0", "learning_rate:0", *(f"{slot}/{W}:0" for slot in slots)]
    assert list(canonical(given)) == [W, "global_step", *(f"{W} @{name}" for name in names)]


@pytest.mark.parametrize(
    ("slots", "names"),
    [
        (["SGD/m/{W}"], ["momentum"]),
        (["Adam/m/{W}", "Adam/v/{W}"], ["m", "v"]),
        (["RMSprop/velocity/{W}", "RMSprop/average_gradient/{W}"], ["rms", "mg"]),
        (["OptimizeLoss/{W}/Adam", "OptimizeLoss/{W}/Adam_1"], ["m", "v"]),
        (["training/Adam/{W}/m", "training/Adam/{W}/v"], ["m", "v"]),
        (["train/{W}/RMSProp", "train/{W}/RMSProp_1", "train/{W}/RMSProp_2"], ["rms", "mg", "momentum"]),
    ],
)
def test_slots_below_a_scope_or_an_optimizers_name(slots, names):
    given = [W, *(slot.format(W=W) for slot in slots)]
    assert canonical(given) == {W: W, **{f"{W} @{name}": one for name, one in zip(names, given[1:], strict=True)}}


def test_settings_of_ftrl_and_a_layer_with_a_weight_of_that_name():
    settings = [f"Ftrl/{name}" for name in ("beta", "learning_rate_power", "l1_regularization_strength")]
    assert list(canonical([W, *settings, "norm/beta", "Ftrl/iter"])) == [W, "norm/beta", "global_step"]


def test_powers_of_beta_in_nested_scopes():
    given = [W, f"a/b/{W}/Adam", f"a/b/{W}/Adam_1", "a/b/beta1_power", "a/b/beta2_power_1:0"]
    assert list(canonical(given)) == [W, f"{W} @m", f"{W} @v"]


def test_what_is_known_counts_before_the_names():
    """A slot by any name, one that is called as another one's, what an optimizer keeps for itself; copies stay out."""
    given = [W, f"{W}/opt:0", f"{W}/Adam:0", "cache:0", f"{W}/opt/replica_1:0"]
    known = {f"{W}/opt": f"{W} @v", f"{W}/Adam": f"{W} @vhat", "cache": None, f"{W}/opt/replica_1": f"{W} @v"}
    assert canonical(given, known) == {W: W, f"{W} @v": f"{W}/opt:0", f"{W} @vhat": f"{W}/Adam:0"}
    assert list(canonical(given[:4])) == [W, f"{W}/opt", f"{W} @m", "cache"]


def test_two_of_one_name_are_refused():
    with pytest.raises(ValueError, match="are both dense/kernel @m"):
        canonical([W, f"{W}/Adam", f"Adam/{W}/m"])
