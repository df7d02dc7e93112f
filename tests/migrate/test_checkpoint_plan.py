"""What each variable of the target is given, or why not: names, order, shapes, slots, steps; plain arrays, no files."""

from __future__ import annotations

import numpy as np
import pytest

from estimator_pipeline.errors import ConfigError
from estimator_pipeline.migrate.checkpoints.draft import Choices
from estimator_pipeline.migrate.checkpoints.mapping import MappedVariable, match_variables
from estimator_pipeline.migrate.checkpoints.optimizer_slots import power_after
from estimator_pipeline.migrate.checkpoints.plan import plan
from estimator_pipeline.migrate.checkpoints.state import state_of

K, B = "dense/kernel", "dense/bias"
STEP = {"global_step": np.int64(7)}
RNG = np.random.default_rng(0)


def values(**shapes):
    return {name: RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def weights(*names, shape=(4, 3)):
    return values(**dict.fromkeys(names, shape))


def source(given, **more):
    return state_of(given, source="SRC", kind="name-based", **more)


def target(given, **more):
    first = {name: np.full(np.shape(value), 9, np.asarray(value).dtype) for name, value in given.items()}
    return state_of({**first, "iter": np.int64(0)}, source="the model", kind="keras", **more)


def moved(theirs, ours, *, hyper=None, style="keras", step=True, **choices):
    given = source({**theirs, **(STEP if step else {})})
    return plan(given, target(ours, style=style), Choices(**choices), hyper=hyper or {}, reverse=False)


def refused(*arguments, **options):
    with pytest.raises(ConfigError) as caught:
        moved(*arguments, **options)
    return str(caught.value)


# Names ---------------------------------------------------------------------------------------------------------

ADAM = {**weights(K, f"{K}/Adam", f"{K}/Adam_1"), "beta1_power": power_after(np.float32(0.9), 7),
        "beta2_power": power_after(np.float32(0.999), 7)}  # fmt: skip
MOMENTUM = weights(K, f"{K}/Momentum")
# The names of one side, those of the other, and which is which.
ALIKE = {
    "v1 momentum, keras": (MOMENTUM, [K, f"SGD/{K}/momentum"], {f"SGD/{K}/momentum": f"{K}/Momentum"}),
    "v1 adam, keras 2": (ADAM, [K, f"Adam/{K}/m", f"Adam/{K}/v"], {f"Adam/{K}/m": f"{K}/Adam",
                                                                  f"Adam/{K}/v": f"{K}/Adam_1"}),
    "v1 adam, newer keras 2": (ADAM, [K, f"Adam/m/{K}", f"Adam/v/{K}"], {f"Adam/v/{K}": f"{K}/Adam_1"}),
    "optimize_loss": ({**weights(K, f"OptimizeLoss/{K}/Adagrad")}, [K, f"{K}/accumulator"],
                      {f"{K}/accumulator": f"OptimizeLoss/{K}/Adagrad"}),
    "model_to_estimator": (weights(K, f"training/Adam/{K}/m", f"training/Adam/{K}/v"), [K, f"{K}/m", f"{K}/v"],
                           {f"{K}/v": f"training/Adam/{K}/v"}),
    "centered rmsprop": (weights(K, f"{K}/RMSProp", f"{K}/RMSProp_1", f"{K}/RMSProp_2"),
                         [K, f"{K}/rms", f"{K}/momentum", f"{K}/mg"],
                         {f"{K}/mg": f"{K}/RMSProp_1", f"{K}/momentum": f"{K}/RMSProp_2"}),
    "newer rmsprop": (weights(K, f"{K}/RMSProp", f"{K}/RMSProp_1"), [K, f"RMSprop/velocity/{K}",
                      f"RMSprop/momentum/{K}"], {f"RMSprop/velocity/{K}": f"{K}/RMSProp"}),
    "ftrl": (weights(K, f"{K}/Ftrl", f"{K}/Ftrl_1"), [K, f"{K}/accumulator", f"{K}/linear"],
             {f"{K}/linear": f"{K}/Ftrl_1"}),
}  # fmt: skip


@pytest.mark.parametrize("case", ALIKE)
def test_names_of_every_optimizer(case):
    theirs, ours, pairs = ALIKE[case]
    done = moved(theirs, weights(*ours), style="v1", hyper={"beta_1": 0.9, "beta_2": 0.999})
    assert set(done.values) == {*ours, "iter"} and done.step == 7 == done.values["iter"]
    for name, given in {K: K, **pairs}.items():
        assert done.values[name].tobytes() == theirs[given].tobytes(), name


def described(**shapes):
    return {name: MappedVariable(shape, "float32") for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        # Another number to count from: by name dense_1 would be dense_1, which is the layer before.
        (["dense_1/kernel", "dense_2/kernel"], ["dense/kernel", "dense_1/kernel"],
         {"dense/kernel": ("dense_1/kernel", "order"), "dense_1/kernel": ("dense_2/kernel", "order")}),
        ([f"dense_{n}/kernel" for n in (9, 10)], ["dense/kernel", "dense_1/kernel"],
         {"dense/kernel": ("dense_9/kernel", "order"), "dense_1/kernel": ("dense_10/kernel", "order")}),
        # One more than there are: which one is left out cannot be told.
        (["dense_1/kernel", "dense_2/kernel", "dense_3/kernel"], ["dense/kernel", "dense_1/kernel"], {}),
        # All of one side are there by name.
        (["dense/kernel", "dense_1/kernel", "dense_2/kernel"], ["dense/kernel", "dense_1/kernel"],
         {"dense/kernel": ("dense/kernel", "name"), "dense_1/kernel": ("dense_1/kernel", "name")}),
        (["tower/dense/kernel", "tower/dense/bias"], ["dense/kernel", "dense/bias"],
         {"dense/kernel": ("tower/dense/kernel", "scope"), "dense/bias": ("tower/dense/bias", "scope")}),
        (["dense/kernel"], ["model/dense/kernel"], {"model/dense/kernel": ("dense/kernel", "scope")}),
        (["h1/weights"], ["fc/kernel"], {"fc/kernel": ("h1/weights", "scope")}),
        (["h1/weights", "h2/weights"], ["a/kernel", "b/kernel"], {}),
        (["h1/biases"], ["norm/gamma"], {}),
    ],
)  # fmt: skip
def test_which_is_which(theirs, ours, expected):
    found = match_variables(described(**dict.fromkeys(theirs, (3, 3))), described(**dict.fromkeys(ours, (3, 3))))
    expected = {name: (given, "shape" if (how, given) == ("scope", "h1/weights") else how)
                for name, (given, how) in expected.items()}  # fmt: skip
    assert found == expected


def test_by_shape_where_there_is_one_of_a_kind():
    theirs = described(**{"h1/weights": (4, 8), "h1/biases": (8,), "out/weights": (8, 2), "h1/gamma": (8,)})
    ours = described(**{"a/kernel": (4, 8), "a/bias": (8,), "b/kernel": (8, 2), "n/gamma": (8,)})
    found = match_variables(theirs, ours)
    assert {name: match.source for name, match in found.items()} == {
        "a/kernel": "h1/weights", "a/bias": "h1/biases", "b/kernel": "out/weights", "n/gamma": "h1/gamma",
    }  # fmt: skip
    assert {match.how for match in found.values()} == {"shape"}


def test_layers_whose_shapes_are_not_in_the_same_order_are_not_matched_by_order():
    theirs = described(**{"dense_1/kernel": (4, 8), "dense_2/kernel": (8, 4)})
    ours = described(**{"dense/kernel": (8, 4), "dense_1/kernel": (4, 8)})
    found = match_variables(theirs, ours)
    # The shapes alone tell it; numbers that contradict them say nothing.
    assert found == {
        "dense/kernel": ("dense_2/kernel", "shape"), "dense_1/kernel": ("dense_1/kernel", "shape"),
    }  # fmt: skip


def test_by_hand():
    theirs, ours = weights("h1/weights", "h2/weights"), weights("a/kernel", "b/kernel")
    done = moved(theirs, ours, mapping={"a/kernel": "h2/weights", "b/kernel:0": "h1/weights"})
    assert done.values["a/kernel"].tobytes() == theirs["h2/weights"].tobytes()
    assert done.weights == {"a/kernel": "h2/weights", "b/kernel": "h1/weights"}
    assert [row.how for row in done.rows if row.target == "a/kernel"] == ["mapping"]


# Planted faults, each refused by name --------------------------------------------------------------------------

POWERS = {"beta1_power": np.float32(0.9), "beta2_power": np.float32(0.999)}
FAULTS = {
    "wrong shape": (weights(K), {}, values(**{K: (4, 5)}), {},
                    "dense/kernel is [4, 5] in the target, but dense/kernel is [4, 3] in the checkpoint"),
    "swapped dtype": (weights(K), {}, {K: np.zeros((4, 3), np.float16)}, {},
                      "dense/kernel is float16 in the target, but dense/kernel is float32 in the checkpoint"),
    "integer weights": ({K: np.zeros((4, 3), np.int32)}, {}, weights(K), {}, "is int32 in the checkpoint"),
    "missing slot": (weights(K, B, f"{K}/Momentum"), {}, weights(K, B, f"{K}/momentum", f"{B}/momentum"),
                     {"style": "v1"}, "the slot dense/bias/momentum [4, 3] is missing in the checkpoint"),
    "slot too many": (weights(K, B, f"{K}/Momentum", f"{B}/Momentum"), {}, weights(K, B, f"{K}/momentum"),
                      {"style": "v1"}, "the slot dense/bias/Momentum [4, 3] of the checkpoint has no counterpart in"),
    "slot of another shape": ({**weights(K), **values(**{f"{K}/Momentum": (2, 3)})}, {},
                              weights(K, f"{K}/momentum"), {"style": "v1"}, "dense/kernel/Momentum is [2, 3] in the"),
    "extra variable": (weights(K, "old/kernel", shape=(4, 3)), {}, weights(K), {},
                       "old/kernel [4, 3] of the checkpoint has no counterpart in the target"),
    "missing variable": (weights(K), {}, {**weights(K), **values(**{B: (3,)})}, {},
                         "dense/bias [3] is missing in the checkpoint"),
    "two candidates": (weights("h1/weights", "h2/weights"), {}, weights("a/kernel", "b/kernel"), {},
                       "a/kernel [4, 3] has no variable of the same name in the checkpoint, and its shape "
                       "is ambiguous: h1/weights, h2/weights"),
    "other optimizer": (ADAM, {}, weights(K, f"{K}/momentum"), {},
                        "the checkpoint's optimizer is adam (m, v), but the target's is momentum (momentum)"),
    "no optimizer's state": (weights(K), {}, weights(K, f"{K}/momentum"), {},
                             "an optimizer without slots, but the target's is momentum"),
    "no step": (weights(K), {}, weights(K), {"step": False}, "the checkpoint has no step (global_step, iter)"),
    "two steps": ({**weights(K), "Adam/iter": np.int64(6)}, {}, weights(K), {},
                  "different step counts: Adam/iter 6, global_step 7"),
    "another step": (weights(K), {"step": 8}, weights(K), {}, None),
    "power of another step": ({**ADAM, **POWERS}, {}, weights(K, f"{K}/m", f"{K}/v"), {"hyper": {"beta_1": 0.9}},
                              "beta1_power is 0.9, but at step 7 with beta_1 0.9 it would be 0.430467"),
    "another learning rate": ({**weights(K), "SGD/learning_rate": np.float32(0.1), "SGD/decay": np.float32(0)}, {},
                              weights(K), {"hyper": {"learning_rate": 0.01}},
                              "SGD/learning_rate is 0.1 in the checkpoint, but 0.01 in the target"),
    "averages": (weights(K, f"{K}/ExponentialMovingAverage"), {}, weights(K), {},
                 "dense/kernel/ExponentialMovingAverage of the checkpoint has no counterpart in the target"),
    "averages without slots": (weights(K, f"{K}/ExponentialMovingAverage", f"{K}/Momentum"), {"use_ema_weights": True},
                               weights(K, f"{K}/momentum"), {"style": "v1"}, "add --drop-optimizer-state"),
    "no averages": (weights(K), {"use_ema_weights": True}, weights(K), {}, "the checkpoint has no moving averages"),
    "momentum of another kind": (MOMENTUM, {}, weights(K, f"{K}/momentum"), {},
                                 "sums up gradients (tf.compat.v1.train), the target's updates (Keras): they differ"),
    "momentum and a schedule": (MOMENTUM, {"learning_rate": 0.1}, weights(K, f"{K}/momentum"),
                                {"hyper": {"learning_rate": {"class_name": "CosineDecay"}}}, "learning-rate schedule"),
    "momentum and another rate": (MOMENTUM, {"learning_rate": 0.1}, weights(K, f"{K}/momentum"),
                                  {"hyper": {"learning_rate": 0.2}}, "rate is 0.2, but the checkpoint's is 0.1"),
    "momentum that does not tell": (weights(K, f"{K}/momentum"), {}, weights(K, f"{K}/momentum"), {},
                                    "--momentum v1, or --momentum keras"),
    "momentum said wrongly": (MOMENTUM, {"momentum": "keras"}, weights(K, f"{K}/momentum"), {},
                              "--momentum is keras, but the momentum of the checkpoint is v1"),
    "mapping of what is not there": (weights(K), {"mapping": {K: "fc/weights"}}, weights(K), {},
                                     "the mapping names fc/weights, but the checkpoint has no such variable"),
    "mapping twice": (weights("a", "b"), {"mapping": {"c": "a", "d": "a"}}, weights("c", "d"), {}, "d or a twice"),
    "an option for nothing": (weights(K), {"allow_leftover": ("old*",)}, weights(K), {},
                              "--allow-leftover old* matches no variable"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_planted_faults_are_refused_by_name(case):
    theirs, choices, ours, options, told = FAULTS[case]
    if case == "another step":
        with pytest.raises(ConfigError, match="--step is 8, but the checkpoint has global_step 7"):
            plan(source({**theirs, **STEP}), target(ours), Choices(step=8), hyper={}, reverse=False)
        return
    text = refused(theirs, ours, **options, **choices)
    assert text.startswith("SRC cannot be migrated to the model: ") and "hint: " in text
    assert told in text


def test_all_that_stands_against_it_is_told_at_once():
    text = refused(weights(K, "old/kernel"), {**weights(K), **values(**{B: (3,), "new/kernel": (2, 2)})})
    for part in ("dense/bias [3] is missing", "new/kernel [2, 2] is missing", "old/kernel [4, 3] of the checkpoint",
                 "--initialize dense/bias", "--allow-leftover old/kernel"):  # fmt: skip
        assert part in text


# What a person says ---------------------------------------------------------------------------------------------


def test_explicit_choices():
    theirs = weights(K, "old/kernel", f"{K}/Momentum", "old/kernel/Momentum")
    ours = {**weights(K, f"{K}/momentum"), **values(**{B: (3,), f"{B}/momentum": (3,)})}
    done = moved(theirs, ours, style="v1", allow_leftover=("old/*",), initialize=(B,))
    how = {row.target or row.source: row.how for row in done.rows}
    assert how["old/kernel"] == "not migrated (--allow-leftover)"
    assert how["old/kernel/Momentum"] == "not migrated, like its weight"
    assert how[B] == "initial value (--initialize)" and how[f"{B}/momentum"] == "initial value (like its weight)"
    assert set(done.values) == {"iter", K, f"{K}/momentum"}


def test_dropped_slots_are_said():
    done = moved(ADAM, weights(K, f"{K}/momentum"), drop_optimizer_state=True)
    assert set(done.values) == {"iter", K}
    assert done.notes == (
        "the optimizer state is reset: 2 slots of the checkpoint are not migrated (--drop-optimizer-state)",
    )


def test_averages_in_the_place_of_weights():
    theirs = weights(K, B, f"{K}/ExponentialMovingAverage")
    done = moved(theirs, weights(K, B), use_ema_weights=True)
    assert done.values[K].tobytes() == theirs[f"{K}/ExponentialMovingAverage"].tobytes()
    assert done.values[B].tobytes() == theirs[B].tobytes()
    assert done.notes == ("1 weights have no moving average and keep their trained values",)


def test_averages_of_the_target_begin_with_their_weights():
    theirs = weights(K)
    ours = weights(K, f"{K}/ExponentialMovingAverage")
    assert "dense/kernel/ExponentialMovingAverage [4, 3] is missing" in refused(theirs, ours)
    done = moved(theirs, ours, initialize=("*/ExponentialMovingAverage",))
    assert done.values[f"{K}/ExponentialMovingAverage"].tobytes() == theirs[K].tobytes()


@pytest.mark.parametrize(("rate", "exact"), [(0.5, True), (0.1, False)])
def test_a_momentum_is_converted_where_the_rate_was_one(rate, exact):
    """V1's velocity times -rate is that of Keras, and back."""
    done = moved(
        MOMENTUM, weights(K, f"{K}/momentum"), learning_rate=rate, hyper={"learning_rate": float(np.float32(rate))}
    )
    there = done.values[f"{K}/momentum"]
    np.testing.assert_allclose(there, MOMENTUM[f"{K}/Momentum"] * -rate, rtol=1e-7)
    how = next(row.how for row in done.rows if row.target.endswith("momentum"))
    assert how == f"name, times {-rate:g}, rounded to float32"
    back = moved({K: MOMENTUM[K], f"SGD/{K}/momentum": there}, weights(K, f"{K}/momentum"), style="v1",
                 learning_rate=rate).values[f"{K}/momentum"]  # fmt: skip
    np.testing.assert_allclose(back, MOMENTUM[f"{K}/Momentum"], rtol=2e-7)
    assert not exact or back.tobytes() == MOMENTUM[f"{K}/Momentum"].tobytes()


def test_the_run_tells_what_its_momentum_is():
    given = source({**weights(K, f"{K}/momentum"), **STEP}, optimizer=("momentum", "v1"))
    done = plan(given, target(weights(K, f"{K}/momentum"), style="v1"), Choices(), hyper={}, reverse=False)
    assert f"{K}/momentum" in done.values


def test_powers_of_beta():
    """Taken where they are kept, worked out where they are not, as float32 multiplied step by step."""
    ours = {**weights(K, f"{K}/m", f"{K}/v"), "beta1_power": np.float32(0), "beta2_power": np.float32(0)}
    first = {**ours, "beta1_power": np.float32(0.9), "beta2_power": np.float32(0.999), "iter": np.int64(0)}
    model = state_of(first, source="the model", kind="keras")
    without = {name: value for name, value in ADAM.items() if "power" not in name}
    for theirs in (ADAM, without):
        done = plan(source({**theirs, **STEP}), model, Choices(), hyper={}, reverse=False)
        assert done.values["beta1_power"].tobytes() == ADAM["beta1_power"].tobytes()
        assert done.values["beta2_power"].tobytes() == ADAM["beta2_power"].tobytes()
    assert power_after(np.float32(0.9), 0) == np.float32(0.9)
    assert power_after(np.float32(0.9), 1) == np.float32(0.9) * np.float32(0.9)
    assert power_after(np.float32(0.9), 10**6) == 0


def test_accepted_though_it_does_not_fit():
    theirs = {**ADAM, **POWERS}
    done = moved(
        theirs, weights(K, f"{K}/m", f"{K}/v"), hyper={"beta_1": 0.9, "beta_2": 0.999}, accept=("beta?_power",)
    )
    assert "follows from the step" in {row.how for row in done.rows}
    both = {**weights(K), "Adam/iter": np.int64(6)}
    assert moved(both, weights(K), accept=("Adam/iter",)).step == 6


def test_a_step_that_is_said():
    done = plan(source(weights(K)), target(weights(K)), Choices(step=40), hyper={}, reverse=False)
    assert done.step == 40 == done.values["iter"]


def test_unused_momentum_of_rmsprop():
    """V1 keeps one without momentum too; Keras does not."""
    theirs = weights(K, f"{K}/RMSProp", f"{K}/RMSProp_1")
    done = moved(theirs, weights(K, f"{K}/rms"), hyper={"momentum": 0.0})
    assert "not migrated: unused, momentum is 0" in {row.how for row in done.rows}
    assert "has no counterpart in the target" in refused(theirs, weights(K, f"{K}/rms"), hyper={"momentum": 0.9})


# Partitions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("sizes", [(2, 2), (3, 2, 2)])
def test_partitions_are_joined(axis, sizes):
    whole = RNG.normal(size=(sum(sizes), 6) if axis == 0 else (6, sum(sizes))).astype(np.float32)
    parts = np.split(whole, np.cumsum(sizes)[:-1], axis)
    theirs = {f"emb/part_{n}": part for n, part in enumerate(parts)}
    theirs |= {f"emb/part_{n}/Adagrad": part * 2 for n, part in enumerate(parts)}
    done = moved(theirs, {"emb": whole, "emb/accumulator": whole})
    assert done.values["emb"].tobytes() == whole.tobytes()
    assert done.values["emb/accumulator"].tobytes() == (whole * 2).tobytes()


def test_partitions_that_are_not_whole():
    with pytest.raises(ConfigError, match="the partitions of emb in SRC are incomplete"):
        source({"emb/part_0": np.zeros(2), "emb/part_2": np.zeros(2)})


def test_one_thing_twice():
    with pytest.raises(ConfigError, match=r"(?s)a variable twice: .* are both dense/kernel @m"):
        source(weights(K, f"{K}/Adam", f"Adam/{K}/m"))


def test_a_weight_that_is_called_like_a_setting():
    """A vector is no learning rate."""
    found = source({**values(**{"gate/decay": (3,)}), "SGD/decay": np.float32(0)})
    assert list(found.weights) == ["gate/decay"] and list(found.settings) == ["SGD/decay"]
