"""A program of canned Estimators: linear ones and networks, for classes and for numbers."""

import numpy as np
import tensorflow as tf


def linear_columns():
    age = tf.feature_column.numeric_column('age', normalizer_fn=lambda age: (age - 40.0) / 20.0)
    buckets = tf.feature_column.bucketized_column(tf.feature_column.numeric_column('age'), [20, 30, 60])
    city = tf.feature_column.categorical_column_with_vocabulary_list('city', ['rome', 'oslo', 'bonn'])
    return [age, tf.feature_column.numeric_column('size', shape=[2]), buckets, city]


def deep_columns():
    age, size, buckets, city = linear_columns()
    return [age, size, buckets, tf.feature_column.embedding_column(city, 3)]


def arrays():
    random = np.random.RandomState(0)
    features = {
        'age': random.randint(15, 70, 64).astype('float32'),
        'size': random.rand(64, 2),
        'city': random.choice(['oslo', 'bonn', 'rome', 'lima', ''], [64, 2]),
    }
    return features, random.randint(0, 2, 64)


def input_fn(training):
    dataset = tf.data.Dataset.from_tensor_slices(arrays())
    if training:
        dataset = dataset.repeat()
    return dataset.batch(16)


def linear():
    classifier = tf.estimator.LinearClassifier(linear_columns(), model_dir='linear', weight_column='age')
    classifier.train(lambda: input_fn(True), steps=12)
    print(classifier.evaluate(lambda: input_fn(False))['accuracy_baseline'])
    for one in classifier.predict(lambda: input_fn(False)):
        print(one['classes'], one['probabilities'])
        break


def deep():
    classifier = tf.estimator.DNNClassifier(
        [8, 4], deep_columns(), model_dir='deep', n_classes=3, optimizer=tf.keras.optimizers.Adagrad(0.05))
    tf.estimator.train_and_evaluate(
        classifier, tf.estimator.TrainSpec(lambda: input_fn(True), max_steps=12),
        tf.estimator.EvalSpec(lambda: input_fn(False)))


def linear_numbers():
    regressor = tf.estimator.LinearRegressor(linear_columns())
    regressor.train(lambda: input_fn(True), steps=12)


def deep_numbers():
    regressor = tf.estimator.DNNRegressor([8, 4], deep_columns(), optimizer='Adam')
    regressor.train(lambda: input_fn(True), steps=12)


if __name__ == '__main__':
    linear()
    deep()
