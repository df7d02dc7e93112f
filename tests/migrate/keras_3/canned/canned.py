"""A program of canned Estimators: linear ones and networks, for classes and for numbers."""

import os
import keras
import numpy as np
import tensorflow as tf

from keras_support import (
    AdagradWithDenseGradients,
    DNNClassifier,
    DNNRegressor,
    Evaluation,
    LinearClassifier,
    LinearRegressor,
    StopAfter,
    bucketized_column,
    categorical_column_with_vocabulary_list,
    embedding_column,
    examples,
    numeric_column,
)


def linear_columns():
    age = numeric_column('age', normalizer_fn=lambda age: (age - 40.0) / 20.0)
    buckets = bucketized_column(numeric_column('age'), [20, 30, 60])
    city = categorical_column_with_vocabulary_list('city', ['rome', 'oslo', 'bonn'])
    return [age, numeric_column('size', shape=[2]), buckets, city]


def deep_columns():
    age, size, buckets, city = linear_columns()
    return [age, size, buckets, embedding_column(city, 3)]


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
    classifier_callbacks = [
        keras.callbacks.BackupAndRestore(os.path.join('linear', 'backup'), save_freq=1000),
        keras.callbacks.TensorBoard('linear', update_freq=100),
    ]
    classifier = LinearClassifier(linear_columns(), weight_column='age')
    classifier.fit(input_fn(True), steps_per_epoch=12, callbacks=[StopAfter(12), *classifier_callbacks], verbose=2)
    classifier.save_weights(os.path.join('linear', 'model.weights.h5'))
    print(classifier.evaluate(input_fn(False), return_dict=True, verbose=0)['accuracy_baseline'])
    for one in examples(classifier, input_fn(False)):
        print(one['classes'], one['probabilities'])
        break


def deep():
    classifier_callbacks = [
        keras.callbacks.BackupAndRestore(os.path.join('deep', 'backup'), save_freq=1000),
        keras.callbacks.TensorBoard('deep', update_freq=100),
    ]
    classifier = DNNClassifier(
        [8, 4], deep_columns(), n_classes=3, optimizer=AdagradWithDenseGradients(0.05))
    evaluation = Evaluation(lambda: input_fn(False).take(100), every_steps=1000, folder='deep')
    classifier.fit(
        input_fn(True), steps_per_epoch=12, callbacks=[StopAfter(12), evaluation, *classifier_callbacks], verbose=2)
    classifier.save_weights(os.path.join('deep', 'model.weights.h5'))


def linear_numbers():
    regressor = LinearRegressor(linear_columns())
    regressor.fit(input_fn(True), steps_per_epoch=12, verbose=2)


def deep_numbers():
    regressor = DNNRegressor([8, 4], deep_columns(), optimizer='Adam')
    regressor.fit(input_fn(True), steps_per_epoch=12, verbose=2)


if __name__ == '__main__':
    linear()
    deep()
