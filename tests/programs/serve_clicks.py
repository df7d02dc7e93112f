"""Loads the SavedModel of deepctr_deepfm.py, as a server without Estimator does, and asks it about some records.

    python serve_clicks.py EXPORT_DIR
"""

import sys

import numpy as np
import tensorflow as tf

loaded = tf.saved_model.load(sys.argv[1])
print("signatures", sorted(loaded.signatures))

# The first records of clicks(512, seed=2) of the program that trained.
random = np.random.RandomState(2)
site, device = random.randint(0, 10, 512), random.randint(0, 10, 512)
age, price = random.rand(512).astype(np.float32), random.rand(512).astype(np.float32)


def integer(value):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[int(value)]))


def real(value):
    return tf.train.Feature(float_list=tf.train.FloatList(value=[float(value)]))


records = [
    tf.train.Example(
        features=tf.train.Features(
            feature={
                "site": integer(site[i]),
                "device": integer(device[i]),
                "age": real(age[i]),
                "price": real(price[i]),
            }
        )
    ).SerializeToString()
    for i in range(3)
]
answers = loaded.signatures["serving_default"](tf.constant(records))
print("answers", *["%s %s" % (name, value.shape) for name, value in sorted(answers.items())])
print("first", float(answers["pred"][0][0]))
print("legacy", hasattr(tf, "estimator"))
