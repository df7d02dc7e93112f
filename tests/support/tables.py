"""Tables as people have them, with a signal that a model finds in a hundred steps."""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path
from typing import Any

__all__ = ["ANSWER", "TABLES", "write_table"]


def _titanic(rng: random.Random) -> dict[str, Any]:
    sex, age = rng.choice(["male", "female"]), rng.choice(["", "22", "35", "60"])
    survived = rng.random() < 0.05 + 0.9 * (sex == "female")
    name = f'Doe, Mr. "Jo" {rng.random()}'
    port = rng.choice(["S", "C", "Q", ""])
    return {"Survived": int(survived), "Pclass": rng.randint(1, 3), "Name": name, "Sex": sex, "Age": age, "Port": port}


def _churn(rng: random.Random) -> dict[str, Any]:
    tenure, plan = rng.randint(0, 72), rng.choice(["basic", "plus", "pro, yearly"])
    leaves = 3 - 0.1 * tenure + 2 * (plan == "basic")
    return {
        "customer id": f"C{rng.randint(0, 10**9)}",
        "tenure": "" if rng.random() < 0.05 else tenure,
        "monthly charges": "NA" if rng.random() < 0.05 else round(rng.lognormvariate(4, 0.5), 2),
        "plan": plan,
        "note": f"two\nlines {rng.random()}",
        "churned": "yes" if rng.random() < 1 / (1 + math.exp(-leaves)) else "no",
    }


def _classes(rng: random.Random) -> dict[str, Any]:
    label = rng.randrange(10)
    columns: dict[str, Any] = {}
    for number in range(20):
        value = rng.gauss(1000 * (label == number % 10), 300)
        columns[f"x{number}"] = "" if rng.random() < 0.1 else round(value, 2)
        columns[f"w{number}"] = rng.choice(["", "a", "b", f"w{label}"])
    return {**columns, "kind": f"k{label}"}


def _price(rng: random.Random) -> dict[str, Any]:
    size, town = rng.uniform(20, 200), rng.choice(["Oslo", "Bergen"])
    year = rng.randint(2016, 2025)
    price = 30_000 * size + 1e6 * (town == "Oslo") + 2e5 * (year - 2016) + rng.gauss(0, 1e5)
    return {"size": round(size, 1), "town": town, "sold": f"{year}-0{rng.randint(1, 9)}-15", "price": round(price)}


# Name -> (a record, number of records, label, the metric of the answers, whether a value of it is good).
TABLES: dict[str, Any] = {
    "titanic": (_titanic, 300, "Survived", "auc", lambda value: value > 0.85),
    "churn": (_churn, 600, "churned", "auc", lambda value: value > 0.75),
    "classes": (_classes, 1200, "kind", "accuracy", lambda value: value > 0.8),
    "price": (_price, 600, "price", "mean_squared_error", lambda value: value < 4e11),
}


def write_table(name: str, path: Path, *, records: int | None = None, seed: int = 0) -> Path:
    """Writes a table as a CSV file."""
    record, count, *_ = TABLES[name]
    rng = random.Random(seed)
    rows = [record(rng) for _ in range(records or count)]
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


ANSWER = '''
"""Asks an exported model about all records of a CSV file, with TensorFlow alone: EXPORT FILE LABEL."""
import csv, datetime, json, os, sys
import tensorflow as tf
folder, file, label = sys.argv[1:]
assert "estimator_pipeline" not in sys.modules and "keras" not in sys.argv
(export,) = (os.path.join(folder, name) for name in os.listdir(folder) if name.isdigit())
model = tf.saved_model.load(export)
signature = model.signatures["serving_default"]
rows = list(csv.DictReader(open(file, encoding="utf-8")))
inputs = {}
for name, spec in signature.structured_input_signature[1].items():
    cells = [row[next(key for key in row if key.replace(" ", "_") == name)] for row in rows]
    if name == "sold":
        cells = [(datetime.date.fromisoformat(cell) - datetime.date(1970, 1, 1)).days for cell in cells]
    if spec.dtype == tf.float32:
        cells = [float("nan") if cell in ("", "NA") else float(cell) for cell in cells]
    inputs[name] = tf.constant(cells, spec.dtype)
answers = {name: value.numpy() for name, value in signature(**inputs).items()}
truth = [row[label] for row in rows]
if "classes" in answers:
    right = [answer.decode() == each for answer, each in zip(answers["classes"].ravel(), truth)]
    scores = {"accuracy": sum(right) / len(right)}
    if "logistic" in answers:
        positive = sorted(set(truth))[1]
        metric = tf.keras.metrics.AUC()
        metric.update_state([each == positive for each in truth], answers["logistic"].ravel())
        scores["auc"] = float(metric.result())
else:
    errors = [(answer - float(each)) ** 2 for answer, each in zip(answers["predictions"].ravel(), truth)]
    scores = {"mean_squared_error": float(sum(errors) / len(errors))}
print(json.dumps({"inputs": sorted(inputs), **scores}))
'''
