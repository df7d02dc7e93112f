"""The files that the programs of tests/migrate/corpus read: `corpus_data.py FOLDER NAME...` writes those of data sets
into a folder for each.

Each set is the same with each run: it is scikit-learn's own, or made by a generator with a seed. What is to be learned
in a made set is a rule with noise, so that a model which learns nothing is seen by its metric.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TRAINING = 0.8
# Words of the reviews.
GOOD = ["great", "lovely", "superb", "delicious", "perfect", "friendly", "wonderful"]
BAD = ["awful", "terrible", "cold", "rude", "broken", "stale", "horrible"]
OTHER = ["the", "food", "service", "place", "was", "we", "and", "very", "it", "table", "with", "my", "a", "this"]
OTHER += ["to", "for", "again", "visit", "staff"]


def digits(folder: Path) -> None:
    """`digits.npz`: 1797 grey images of 8 by 8 pixels, uint8 up to 255, and their digits."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    order = np.random.RandomState(7).permutation(len(labels))
    images, labels = images[order], labels[order].astype(np.int64)
    np.savez(
        folder / "digits.npz", x_train=images[:1440], y_train=labels[:1440], x_test=images[1440:], y_test=labels[1440:]
    )


def digit_records(folder: Path) -> None:
    """`train-*.tfrecord` and `test-*.tfrecord`: the digits as serialized Examples with raw bytes."""
    import tensorflow as tf

    digits(folder)
    with np.load(folder / "digits.npz") as sets:
        for name, shards in (("train", 3), ("test", 1)):
            images, labels = sets[f"x_{name}"], sets[f"y_{name}"]
            for shard in range(shards):
                path = folder / f"{name}-{shard:05d}-of-{shards:05d}.tfrecord"
                with tf.io.TFRecordWriter(str(path)) as writer:
                    for image, label in zip(images[shard::shards], labels[shard::shards], strict=True):
                        writer.write(_example(image_raw=image.tobytes(), label=int(label)))


def census(folder: Path) -> None:
    """`adult.data` and `adult.test`: a census of made-up people, CSV without a header; missing is " ?"."""
    random = np.random.RandomState(11)
    educations = ["HS-grad", "Some-college", "Bachelors", "Masters", "Doctorate", "11th", "Assoc-voc"]
    years = [9, 10, 13, 14, 16, 7, 11]
    occupations = ["Sales", "Tech-support", "Exec-managerial", "Craft-repair", "Other-service", "Prof-specialty"]
    pays = [0.0, 0.5, 1.6, 0.1, -1.4, 1.2]
    relationships = ["Husband", "Wife", "Own-child", "Unmarried", "Not-in-family"]
    rows = []
    for _ in range(3000):
        education, occupation = random.randint(len(educations)), random.randint(len(occupations))
        age, hours = int(random.randint(17, 75)), int(np.clip(random.normal(40, 10), 5, 90))
        relationship = relationships[random.randint(len(relationships))]
        gain = int(random.choice([0, 0, 0, 0, 3000, 7000]))
        score = 0.35 * (years[education] - 10) + pays[occupation] + gain / 3000 + (hours - 40) / 12
        score += 1.5 * (relationship in ("Husband", "Wife")) - 0.003 * (age - 48) ** 2
        income = ">50K" if score + random.normal(0, 0.8) > 0.4 else "<=50K"
        kind = random.choice(["Private", "State-gov", "Self-emp", "?"], p=[0.7, 0.12, 0.13, 0.05])
        rows.append(
            [age, kind, int(random.randint(20000, 400000)), educations[education], years[education],
             random.choice(["Married-civ-spouse", "Divorced", "Never-married"]), occupations[occupation], relationship,
             random.choice(["Female", "Male"]), gain, int(random.choice([0, 0, 0, 1800])), hours,
             random.choice(["United-States", "Mexico", "India", "Germany"]), income]
        )  # fmt: skip
    _split_csv(folder, rows, "adult.data", "adult.test")


def reviews(folder: Path) -> None:
    """`train.tsv` and `test.tsv` (label, text) of made-up reviews, and `vocab.txt`, a word a line."""
    random = np.random.RandomState(13)
    rows = []
    for _ in range(1500):
        label = int(random.randint(2))
        words = list(random.choice(OTHER, random.randint(3, 18)))
        for _ in range(random.randint(1, 4)):
            words.append(random.choice(GOOD if (random.uniform() < 0.88) == bool(label) else BAD))
        random.shuffle(words)
        rows.append([label, " ".join(words)])
    _split_csv(folder, rows, "train.tsv", "test.tsv", delimiter="\t")
    # The rarest words are unknown to the programs.
    (folder / "vocab.txt").write_text("\n".join(sorted({*GOOD, *BAD, *OTHER} - {"staff", "visit"})) + "\n")


def orders(folder: Path) -> None:
    """`orders_train.csv` and `orders_eval.csv`, with a header: orders, late or not, and their days."""
    random = np.random.RandomState(17)
    header = ["distance_km", "weight_kg", "items", "weekday", "express", "late", "days"]
    rows = []
    for _ in range(2000):
        distance, weight = random.uniform(5, 900), random.exponential(8)
        items, weekday, express = random.randint(1, 12), random.randint(7), random.randint(2)
        days = 0.8 + distance / 220 + 0.05 * weight + 0.8 * (weekday >= 5) - 1.1 * express + random.normal(0, 0.3)
        late = int(distance / 300 + 0.1 * items + 0.06 * weight - 0.8 * express + random.normal(0, 0.3) > 2.0)
        rows.append([f"{distance:.1f}", f"{weight:.2f}", items, weekday, express, late, f"{max(days, 0.2):.2f}"])
    _split_csv(folder, rows, "orders_train.csv", "orders_eval.csv", header=header)


def turbines(folder: Path) -> None:
    """`turbines_train.csv` and `turbines_eval.csv`, with a header: twelve sensors, and whether the turbine failed."""
    random = np.random.RandomState(19)
    readings = random.normal(size=[2400, 12]).astype(np.float32)
    hidden = np.tanh(readings @ random.normal(size=[12, 4])) @ random.normal(size=4)
    failed = (hidden + random.normal(0, 0.4, len(hidden)) > 0.3).astype(int)
    header = [*(f"sensor_{i:02d}" for i in range(12)), "failed"]
    rows = [[*(f"{x:.4f}" for x in reading), label] for reading, label in zip(readings, failed, strict=True)]
    _split_csv(folder, rows, "turbines_train.csv", "turbines_eval.csv", header=header)


def clicks(folder: Path) -> None:
    """`train/part-*.csv` and `eval/part-*.csv` without a header: click, three ids, two numbers of shown adverts."""
    random = np.random.RandomState(23)
    tastes, appeals = random.normal(size=[200, 3]), random.normal(size=[80, 3])
    sites = random.normal(0, 0.7, 10)
    rows = []
    for _ in range(6000):
        user, ad, site = random.randint(200), random.randint(80), random.randint(10)
        position, price = random.randint(1, 6), random.uniform(0, 1)
        score = tastes[user] @ appeals[ad] + sites[site] - 0.4 * position + price + 0.5
        clicked = int(score + random.logistic(0, 0.4) > 0)
        rows.append([clicked, f"u{user}", f"a{ad}", f"site{site}", position, f"{price:.3f}"])
    for name, part, files in (("train", rows[:5000], 4), ("eval", rows[5000:], 1)):
        (folder / name).mkdir()
        for i in range(files):
            _write_csv(folder / name / f"part-{i:05d}.csv", part[i::files])


def churn(folder: Path) -> None:
    """`train-*.tfrecord` and `eval-*.tfrecord`: customers as Examples, some without a plan; `plans.txt`."""
    import tensorflow as tf

    random = np.random.RandomState(29)
    plans, effects = ["basic", "family", "business", "student"], [0.9, -0.6, -1.2, 0.4]
    (folder / "plans.txt").write_text("\n".join(plans) + "\n")
    records = []
    for _ in range(2400):
        plan, months, fee = random.randint(4), random.randint(1, 72), random.uniform(5, 80)
        services = list(random.choice(["tv", "phone", "cloud", "music"], random.randint(0, 4), replace=False))
        score = effects[plan] - months / 24 + fee / 30 - 0.4 * len(services) + random.logistic(0, 0.3)
        known = {"plan": plans[plan]} if random.uniform() < 0.95 else {}
        records.append(
            _example(months=int(months), fee=float(fee), services=services, churned=int(score > 0.2), **known)
        )
    for name, part, shards in (("train", records[:2000], 2), ("eval", records[2000:], 1)):
        for shard in range(shards):
            with tf.io.TFRecordWriter(str(folder / f"{name}-{shard:05d}-of-{shards:05d}.tfrecord")) as writer:
                for record in part[shard::shards]:
                    writer.write(record)


def housing(folder: Path) -> None:
    """`housing_train.csv` and `housing_test.csv`, with a header: features of very different scales, and a price."""
    random = np.random.RandomState(31)
    header = ["rooms", "area", "age", "tax", "crime", "distance", "zone", "river", "price"]
    rows = []
    for _ in range(1600):
        rooms, area, age = random.randint(1, 9), random.uniform(30, 260), random.randint(0, 110)
        tax, crime, distance = random.uniform(180, 720), random.exponential(3.5), random.uniform(0.5, 25)
        zone, river = random.choice(["centre", "suburb", "country"]), random.randint(2)
        price = 8 + 0.11 * area + 1.1 * rooms - 0.03 * age - 0.008 * tax - 0.5 * min(crime, 15) - 0.2 * distance
        price += {"centre": 6.0, "suburb": 1.0, "country": -3.0}[zone] + 2.5 * river + random.normal(0, 1.5)
        rows.append([rooms, f"{area:.1f}", age, f"{tax:.0f}", f"{crime:.3f}", f"{distance:.2f}", zone, river,
                     f"{max(price, 1):.2f}"])  # fmt: skip
    _split_csv(folder, rows, "housing_train.csv", "housing_test.csv", header=header)


def ratings(folder: Path) -> None:
    """`ratings.csv` (user, movie, rating from 1 to 5, timestamp) and `movies.csv` (movie, genres with | between)."""
    random = np.random.RandomState(37)
    genres = ["Action", "Comedy", "Drama", "Horror", "Romance"]
    movies = [sorted(random.choice(5, random.randint(1, 3), replace=False)) for _ in range(90)]
    likes, quality = random.normal(size=[150, 5]), random.normal(0, 0.5, 90)
    rows = []
    for at in range(6000):
        user, movie = random.randint(150), random.randint(90)
        score = 3.2 + quality[movie] + likes[user][movies[movie]].mean() + random.normal(0, 0.4)
        rows.append([user, movie, int(np.clip(round(score), 1, 5)), 978300000 + at])
    _write_csv(folder / "ratings.csv", rows, header=["userId", "movieId", "rating", "timestamp"])
    told = [[i, "|".join(genres[g] for g in movie)] for i, movie in enumerate(movies)]
    _write_csv(folder / "movies.csv", told, header=["movieId", "genres"])


def wine(folder: Path) -> None:
    """`wine_train.csv` and `wine_test.csv`, with a header: scikit-learn's wines, thirteen measures and the cultivar."""
    from sklearn.datasets import load_wine

    _tabular(folder, load_wine(), "wine", "cultivar")


def tumours(folder: Path) -> None:
    """`tumours_train.csv` and `tumours_test.csv`, with a header: ten means of scikit-learn's breast cancer set, a
    diagnosis in words, and how sure the pathologist was."""
    from sklearn.datasets import load_breast_cancer

    loaded = load_breast_cancer()
    random = np.random.RandomState(41)
    header = [name.replace(" ", "_") for name in loaded.feature_names[:10]] + ["hospital", "sure", "diagnosis"]
    rows = [
        [*values[:10], random.choice(["north", "south", "west"]), random.choice([1.0, 0.5]), loaded.target_names[label]]
        for values, label in zip(loaded.data, loaded.target, strict=True)
    ]
    random.shuffle(rows)
    _split_csv(folder, rows, "tumours_train.csv", "tumours_test.csv", header=header)


def demand(folder: Path) -> None:
    """`demand.npz`: sequences of hourly demand of varying length, padded with zeros, their lengths, and the next."""
    random = np.random.RandomState(43)
    sequences = np.zeros([1500, 24, 2], np.float32)
    lengths = random.randint(8, 25, 1500).astype(np.int32)
    targets = np.zeros([1500, 1], np.float32)
    for i, length in enumerate(lengths):
        begin, level = random.uniform(0, 24), random.uniform(0.5, 1.5)
        hours = begin + np.arange(length + 1)
        values = level * np.sin(hours * np.pi / 6) + random.normal(0, 0.05, length + 1)
        sequences[i, :length, 0], sequences[i, :length, 1] = values[:-1], np.cos(hours[:-1] * np.pi / 12)
        targets[i] = values[-1]
    np.savez(folder / "demand.npz", sequences=sequences, lengths=lengths, targets=targets)


def tickets(folder: Path) -> None:
    """`tickets_train.jsonl` and `tickets_test.jsonl`: support tickets: subject, channel, words' counts, and a team."""
    random = np.random.RandomState(47)
    teams = ["billing", "network", "hardware", "account"]
    topics = random.dirichlet(np.full(40, 0.15), 4)
    lines = []
    for number in range(1600):
        team = random.randint(4)
        counts = random.multinomial(random.randint(6, 20), 0.75 * topics[team] + 0.25 / 40)
        told = {"id": number, "channel": str(random.choice(["mail", "phone", "chat"])), "team": teams[team]}
        lines.append(json.dumps({**told, "counts": counts.tolist()}))
    at = int(len(lines) * TRAINING)
    (folder / "tickets_train.jsonl").write_text("\n".join(lines[:at]) + "\n")
    (folder / "tickets_test.jsonl").write_text("\n".join(lines[at:]) + "\n")


SETS: dict[str, Callable[[Path], None]] = {
    made.__name__: made
    for made in (
        digits, digit_records, census, reviews, orders, turbines, clicks, churn, housing, ratings, wine, tumours,
        demand, tickets,
    )
}  # fmt: skip


def write(name: str, folder: Path) -> Path:
    """Writes the files of a data set into `folder`, which is made; gives it back."""
    folder.mkdir(parents=True, exist_ok=True)
    SETS[name](folder)
    return folder


def _tabular(folder: Path, loaded: Any, name: str, target: str) -> None:
    header = [column.replace("/", "_") for column in loaded.feature_names] + [target]
    rows = [[*values, label] for values, label in zip(loaded.data, loaded.target, strict=True)]
    np.random.RandomState(5).shuffle(rows)
    _split_csv(folder, rows, f"{name}_train.csv", f"{name}_test.csv", header=header)


def _split_csv(
    folder: Path, rows: Sequence[Any], training: str, test: str, *, header: Any = None, delimiter: str = ","
) -> None:
    at = int(len(rows) * TRAINING)
    _write_csv(folder / training, rows[:at], header=header, delimiter=delimiter)
    _write_csv(folder / test, rows[at:], header=header, delimiter=delimiter)


def _write_csv(path: Path, rows: Iterable[Any], *, header: Any = None, delimiter: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        if header is not None:
            writer.writerow(header)
        writer.writerows(rows)


def _example(**features: Any) -> bytes:
    import tensorflow as tf

    def feature(value: Any) -> Any:
        values = value if isinstance(value, list) else [value]
        if all(isinstance(each, int) for each in values) and values:
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        if all(isinstance(each, float) for each in values) and values:
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        texts = [each if isinstance(each, bytes) else str(each).encode() for each in values]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))

    made = {name: feature(value) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        write(name, Path(sys.argv[1]) / name)
