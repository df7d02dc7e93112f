"""Predicts whether a person earns more than 50K a year by a wide & deep model.

python census_wide_deep.py --data_dir=/data/census --model_dir=/tmp/census
"""

from __future__ import annotations

import os

import tensorflow as tf
from absl import app, flags

_CSV_COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship",
    "gender", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income_bracket",
]  # fmt: skip
_NUMERIC = ["age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week"]
_VOCABULARIES = {
    "education": ["Bachelors", "HS-grad", "11th", "Masters", "Some-college", "Assoc-voc", "Doctorate"],
    "marital_status": ["Married-civ-spouse", "Divorced", "Never-married"],
    "relationship": ["Husband", "Not-in-family", "Wife", "Own-child", "Unmarried"],
    "workclass": ["Self-emp", "Private", "State-gov", "?"],
}
_AGES = [18, 25, 30, 35, 40, 45, 50, 55, 60, 65]
_HASH_BUCKET_SIZE = 1000
_NUM_TRAINING = 2400

# What the canned Estimator takes where nothing is said; the linear rate is 1/sqrt(columns), 0.005 at most.
_DNN_LEARNING_RATE = 0.001
_LINEAR_LEARNING_RATE = 0.005


class WideDeep(tf.keras.Model):
    """A functional model with an optimizer for its wide part and one for its deep part."""

    def compile(self, *, linear_optimizer, **options) -> None:
        super().compile(**options)
        self.linear_optimizer = linear_optimizer

    def train_step(self, data):
        features, labels = data
        with tf.GradientTape() as tape:
            logits = self(features, training=True)
            loss = self.compute_loss(features, labels, logits)
        variables = self.trainable_variables
        pairs = list(zip(tape.gradient(loss, variables), variables, strict=True))
        wide = [(gradient, variable) for gradient, variable in pairs if variable.name.startswith("linear")]
        deep = [(gradient, variable) for gradient, variable in pairs if not variable.name.startswith("linear")]
        self.linear_optimizer.apply_gradients(wide)
        self.optimizer.apply_gradients(deep)
        return self.compute_metrics(features, labels, logits, None)


class Bias(tf.keras.layers.Layer):
    """Adds one number to [B, 1]; the deep part has a bias of its own."""

    def build(self, input_shape):
        self.bias = self.add_weight(name="bias", shape=[1], initializer="zeros")

    def call(self, inputs):
        return inputs + self.bias


def one_hot(name: str, column):
    """[B, 1] words -> [B, vocabulary]; an unknown word is zeros throughout, as in a feature column."""
    lookup = tf.keras.layers.StringLookup(vocabulary=_VOCABULARIES[name], output_mode="one_hot", name=f"{name}_lookup")
    return lookup(column)[:, 1:]


def weight_of(ids, size: int, name: str):
    """The linear weight of each id: [B, 1] -> [B, 1]."""
    weights = tf.keras.layers.Embedding(size, 1, embeddings_initializer="zeros", name=name)
    return tf.keras.layers.Flatten()(weights(ids))


def make_model(hidden_units=(100, 75, 50, 25)) -> WideDeep:
    """The compiled model, from the columns [B, 1] to logits [B, 1]."""
    layers = tf.keras.layers
    strings = {name: tf.keras.Input([1], name=name, dtype=tf.string) for name in [*_VOCABULARIES, "occupation"]}
    numbers = {name: tf.keras.Input([1], name=name) for name in _NUMERIC if name != "fnlwgt"}
    words = {name: one_hot(name, strings[name]) for name in _VOCABULARIES}
    occupation = layers.Hashing(_HASH_BUCKET_SIZE, name="occupation_hash")(strings["occupation"])
    ages = layers.Discretization(_AGES, name="age_buckets")(numbers["age"])
    crossed = layers.HashedCrossing(_HASH_BUCKET_SIZE, name="education_X_occupation")(
        (strings["education"], strings["occupation"])
    )
    crossed_ages = layers.HashedCrossing(_HASH_BUCKET_SIZE, name="age_X_education_X_occupation")(
        (ages, strings["education"], strings["occupation"])
    )

    wide = [
        layers.Dense(1, use_bias=False, kernel_initializer="zeros", name=f"linear_{name}")(words[name])
        for name in _VOCABULARIES
    ]
    wide += [
        weight_of(occupation, _HASH_BUCKET_SIZE, "linear_occupation"),
        weight_of(ages, len(_AGES) + 1, "linear_age"),
        weight_of(crossed, _HASH_BUCKET_SIZE, "linear_education_X_occupation"),
        weight_of(crossed_ages, _HASH_BUCKET_SIZE, "linear_age_X_education_X_occupation"),
    ]
    wide_logits = Bias(name="linear_bias")(layers.Add()(wide))

    embedded = layers.Embedding(
        _HASH_BUCKET_SIZE,
        8,
        embeddings_initializer=tf.keras.initializers.TruncatedNormal(stddev=8**-0.5),
        name="occupation_embedding",
    )(occupation)
    deep = {**numbers, **{f"{name}_indicator": column for name, column in words.items()}}
    deep["occupation_embedding"] = layers.Flatten()(embedded)
    # Sorted by name: so feature columns are, and so the rows of the first kernel.
    net = layers.Concatenate()([deep[name] for name in sorted(deep)])
    for i, units in enumerate(hidden_units):
        net = layers.Dense(units, activation="relu", name=f"hiddenlayer_{i}")(net)
    logits = layers.Add()([layers.Dense(1, name="logits")(net), wide_logits])
    model = WideDeep({**strings, **numbers}, logits)
    model.compile(
        optimizer=tf.keras.optimizers.Adagrad(_DNN_LEARNING_RATE),
        linear_optimizer=tf.keras.optimizers.Ftrl(min(_LINEAR_LEARNING_RATE, len(wide) ** -0.5)),
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[
            tf.keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy"),
            tf.keras.metrics.AUC(from_logits=True, name="auc"),
        ],
    )
    return model


def dataset(path: str, *, shuffle: bool, batch_size: int = 40) -> tf.data.Dataset:
    defaults = [[0.0] if name in _NUMERIC else [""] for name in _CSV_COLUMNS]

    def parse_csv(line):
        features = dict(zip(_CSV_COLUMNS, tf.io.decode_csv(line, defaults), strict=True))
        features = {name: tf.expand_dims(column, -1) for name, column in features.items()}
        for unused in ("fnlwgt", "gender", "native_country"):
            features.pop(unused)
        label = tf.equal(features.pop("income_bracket"), ">50K")
        # Large amounts would drown the rest.
        features["capital_gain"] /= 1000.0
        features["capital_loss"] /= 1000.0
        return features, label

    lines = tf.data.TextLineDataset(path)
    if shuffle:
        lines = lines.shuffle(_NUM_TRAINING, seed=3)
    return lines.map(parse_csv, num_parallel_calls=2).batch(batch_size)


def main(_) -> None:
    flag = flags.FLAGS
    tf.keras.utils.set_random_seed(1234)
    model = make_model()
    model.fit(
        dataset(os.path.join(flag.data_dir, "adult.data"), shuffle=True),
        epochs=flag.train_epochs,
        validation_data=dataset(os.path.join(flag.data_dir, "adult.test"), shuffle=False),
        validation_freq=flag.epochs_between_evals,
        verbose=2,
    )
    model.save_weights(os.path.join(flag.model_dir, "weights"))


if __name__ == "__main__":
    flags.DEFINE_string("data_dir", "/tmp/census_data", "Folder with adult.data and adult.test.")
    flags.DEFINE_string("model_dir", "/tmp/census_model", "Where the weights go.")
    flags.DEFINE_integer("train_epochs", 8, "Epochs in all.")
    flags.DEFINE_integer("epochs_between_evals", 4, "Epochs between evaluations.")
    app.run(main)
