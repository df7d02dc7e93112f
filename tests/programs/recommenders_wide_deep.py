"""recommenders' wide & deep model on generated ratings, as its notebook for MovieLens. One line of JSON.

    python recommenders_wide_deep.py WORK_DIR
"""

import base64
import json
import os
import sys

import numpy as np
import pandas as pd
import tensorflow as tf
from recommenders.models.wide_deep.wide_deep_utils import build_feature_columns, build_model
from recommenders.utils.constants import DEFAULT_ITEM_COL, DEFAULT_RATING_COL, DEFAULT_USER_COL
from recommenders.utils.tf_utils import build_optimizer, evaluation_log_hook, export_model, pandas_input_fn

USERS, ITEMS, STEPS = 60, 40, 600


class Log:
    def __init__(self):
        self.values = []

    def log(self, name, value):
        self.values.append((name, float(value)))


def ratings():
    """What a user thinks of an item: the product of their tastes, and noise."""
    random = np.random.RandomState(3)
    tastes, genres = random.normal(size=[USERS, 3]), random.normal(size=[ITEMS, 3])
    users, items = np.meshgrid(np.arange(USERS), np.arange(ITEMS), indexing="ij")
    scores = np.clip(3 + (tastes @ genres.T) + random.normal(scale=0.1, size=[USERS, ITEMS]), 1, 5)
    frame = pd.DataFrame(
        {
            DEFAULT_USER_COL: users.ravel() + 1,
            DEFAULT_ITEM_COL: items.ravel() + 1,
            "genres": [genres[item].astype(np.float32).tolist() for item in items.ravel()],
            DEFAULT_RATING_COL: scores.ravel().astype(np.float32),
        }
    ).sample(frac=1.0, random_state=7)
    return frame[:1800], frame[1800:]


def main(work_dir):
    train, test = ratings()
    wide, deep = build_feature_columns(
        users=range(1, USERS + 1), items=range(1, ITEMS + 1), item_feat_col="genres", item_feat_shape=3
    )
    model = build_model(
        os.path.join(work_dir, "model"), wide, deep, build_optimizer("adagrad", 0.05), build_optimizer("adam", 0.01),
        dnn_hidden_units=(32, 16), save_checkpoints_steps=200, seed=5,
    )  # fmt: skip
    log = Log()
    hook = evaluation_log_hook(
        model, log, test, DEFAULT_RATING_COL, test.drop(columns=DEFAULT_RATING_COL), 200, model.model_dir
    )
    read = pandas_input_fn(train, DEFAULT_RATING_COL, batch_size=64, num_epochs=None, shuffle=True, seed=1)
    model.train(read, hooks=[hook], steps=STEPS)
    metrics = model.evaluate(pandas_input_fn(test, DEFAULT_RATING_COL))
    predicted = [float(each["predictions"][0]) for each in model.predict(pandas_input_fn(test))]
    exported = export_model(
        model, pandas_input_fn(train, DEFAULT_RATING_COL), pandas_input_fn(test, DEFAULT_RATING_COL), [*wide, *deep],
        os.path.join(work_dir, "export"),
    )  # fmt: skip
    first = test.iloc[0]
    example = tf.train.Example()
    for name in (DEFAULT_USER_COL, DEFAULT_ITEM_COL):
        example.features.feature[name].int64_list.value.append(int(first[name]))
    example.features.feature["genres"].float_list.value.extend(first["genres"])
    error = np.sqrt(np.mean((np.array(predicted) - test[DEFAULT_RATING_COL]) ** 2))
    result = {
        "step": int(metrics["global_step"]),
        "error": float(error),
        "average_loss": float(metrics["average_loss"]),
        "spread": float(test[DEFAULT_RATING_COL].std()),
        "logged": log.values,
        "predicted": predicted[0],
        "exported": exported,
        "record": base64.b64encode(example.SerializeToString()).decode(),
    }
    print(json.dumps(result))


main(sys.argv[1])
