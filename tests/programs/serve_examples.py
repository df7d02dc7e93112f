"""Loads SavedModels as a server without Estimator does, and asks each about serialized records.

    python serve_examples.py < QUESTIONS

QUESTIONS is JSON: a list of {"export": directory, "signature": name, "records": [base64 of one record, ...]}. Prints
one line of JSON for each: name of the output -> values. The first line says whether this process has tf.estimator.
"""

import base64
import json
import sys

import tensorflow as tf

print(json.dumps(hasattr(tf, "estimator")), flush=True)
for question in json.load(sys.stdin):
    loaded = tf.saved_model.load(question["export"], tags=["serve"])
    signature = loaded.signatures[question.get("signature", "serving_default")]
    answers = signature(tf.constant([base64.b64decode(record) for record in question["records"]]))
    values = {name: value.numpy().tolist() for name, value in answers.items()}
    print(json.dumps(values, default=bytes.decode), flush=True)
