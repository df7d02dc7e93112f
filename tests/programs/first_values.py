"""A callback that writes what a model and its optimizer begin training with, by name: FIRST_VALUES/TASK-NUMBER.npz."""

import json
import os

import numpy as np
import tensorflow as tf

from estimator_pipeline import compat
from estimator_pipeline.models.keras3_variables import ModelVariables


def values_of(model):
    """Name -> value: those of a checkpoint of the engine keras3, and such of Keras 2."""
    if compat.keras_generation() == 3:
        made = ModelVariables(model)
        return {name: variable.numpy() for name, variable in {**made.model, **made.optimizer}.items()}
    optimizer = model.optimizer
    found = {"learning_rate": optimizer.learning_rate.numpy()}
    for variable in model.trainable_variables:
        name = variable.name.partition(":")[0]
        found[name] = variable.numpy()
        for slot in optimizer.get_slot_names():
            found[f"{name}/{slot}"] = optimizer.get_slot(variable, slot).numpy()
    return found


class FirstValues(tf.keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        index = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
        folder = os.environ["FIRST_VALUES"]
        number = sum(name.startswith(f"{index}-") for name in os.listdir(folder))
        np.savez(os.path.join(folder, f"{index}-{number}.npz"), **values_of(self.model))


def callback():
    return FirstValues()
