"""House prices by a network over normalised columns.

python house_prices.py --train housing_train.csv --test housing_test.csv
"""

from __future__ import annotations

import argparse
import os

import numpy as np
import pandas as pd
import tensorflow as tf

LABEL = "price"
NUMBERS = ["rooms", "area", "age", "tax", "crime", "distance"]
LOGGED = {"crime"}
TYPES = {"zone": tf.string, "river": tf.int64}


def encoded_columns(frame: pd.DataFrame, inputs: dict) -> dict:
    """Each column as the network sees it, by the name that a feature column would have."""
    encoded = {}
    for name in NUMBERS:
        values, column = frame[name], inputs[name]
        if name in LOGGED:
            values, column = np.log1p(values), tf.keras.layers.Lambda(tf.math.log1p, name=f"log_{name}")(column)
        normalize = tf.keras.layers.Normalization(
            axis=None, mean=values.mean(), variance=values.var(), name=f"normalize_{name}"
        )
        encoded[name] = normalize(column)
    # The column of unknown words is cut off: they are zeros throughout.
    zones = tf.keras.layers.StringLookup(vocabulary=sorted(frame["zone"].unique()), output_mode="one_hot")
    encoded["zone_indicator"] = zones(inputs["zone"])[:, 1:]
    encoded["river_indicator"] = tf.keras.layers.CategoryEncoding(2, output_mode="one_hot")(inputs["river"])
    return encoded


def make_model(frame: pd.DataFrame) -> tf.keras.Model:
    """The compiled model.

    Args:
        frame: the training data without the label, for the statistics and the vocabulary.
    """
    inputs = {name: tf.keras.Input([1], name=name, dtype=TYPES.get(name, tf.float32)) for name in frame.columns}
    encoded = encoded_columns(frame, inputs)
    # Sorted by name: so feature columns are, and so the rows of the first kernel.
    net = tf.keras.layers.Concatenate()([encoded[name] for name in sorted(encoded)])
    for i in range(2):
        net = tf.keras.layers.Dense(32, activation="relu", name=f"hiddenlayer_{i}")(net)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="logits")(net))
    model.compile(
        optimizer=tf.keras.optimizers.Adagrad(0.1),
        loss="mse",
        metrics=[tf.keras.metrics.MeanSquaredError(name="average_loss")],
    )
    return model


def dataset(frame: pd.DataFrame, prices: pd.Series, *, training: bool, batch_size: int) -> tf.data.Dataset:
    columns = {name: values.to_numpy(object if name == "zone" else None) for name, values in frame.items()}
    data = tf.data.Dataset.from_tensor_slices((columns, prices.to_numpy(np.float32)))
    return data.shuffle(len(frame), seed=3).repeat().batch(batch_size) if training else data.batch(batch_size)


def main(args: argparse.Namespace) -> None:
    tf.keras.utils.set_random_seed(3)
    train, test = pd.read_csv(args.train), pd.read_csv(args.test)
    train_y, test_y = train.pop(LABEL), test.pop(LABEL)
    scale = train_y.std()
    model = make_model(train)
    model.fit(
        dataset(train, train_y / scale, training=True, batch_size=args.batch_size),
        steps_per_epoch=args.steps,
        verbose=2,
    )
    testing = dataset(test, test_y / scale, training=False, batch_size=128)
    evaluation = model.evaluate(testing, return_dict=True, verbose=0)
    print(f"rmse {scale * np.sqrt(evaluation['average_loss']):.3f}, of a constant {test_y.std():.3f}")

    predicted = model.predict(testing, verbose=0)[:, 0] * scale
    table = pd.DataFrame({"price": test_y, "predicted": predicted})
    os.makedirs(args.model_dir, exist_ok=True)
    table.to_csv(os.path.join(args.model_dir, "predicted.csv"), index=False)
    print(f"correlation {table.corr().iloc[0, 1]:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--model-dir", default="/tmp/houses")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=32)
    main(parser.parse_args())
