"""spleeter trains on two instruments and then separates a song that it has not heard. Prints what it found again.

    python spleeter_songs.py WORK_DIR
    python spleeter_songs.py WORK_DIR prepare       # writes only the songs and config.json, for spleeter's command

The steps are those of `spleeter train` and `spleeter separate`, with its own data sets, model and Separator; the songs
are generated, and read by an audio adapter for plain WAV files, so that neither ffmpeg nor a download is needed.
"""

import functools
import json
import logging
import os
import sys
import wave

import numpy as np
import tensorflow as tf
from spleeter.audio.adapter import AudioAdapter
from spleeter.dataset import get_training_dataset, get_validation_dataset
from spleeter.model import model_fn
from spleeter.model.provider import ModelProvider
from spleeter.separator import Separator

RATE, SECONDS, SONGS = 8000, 4.0, 8
PARTS = ("mix", "vocals", "accompaniment")


class WaveAdapter(AudioAdapter):
    def load(self, audio_descriptor, offset=None, duration=None, sample_rate=None, dtype=b"float32"):
        with wave.open(os.fsdecode(audio_descriptor), "rb") as file:
            data = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
            rate = file.getframerate()
        start = int((offset or 0) * rate)
        stop = None if duration is None else start + int(duration * rate)
        return data[start:stop].astype(np.float32) / 32768, rate

    def save(self, path, data, sample_rate, codec=None, bitrate=None):
        with wave.open(os.fspath(path), "wb") as file:
            file.setparams((data.shape[1], 2, int(sample_rate), 0, "NONE", "not compressed"))
            file.writeframes((np.clip(data, -1, 1) * 32767).astype("<i2").tobytes())


def song(seed):
    """A voice with an overtone, from 1 to 1.5 kHz, and a bass below 400 Hz with some noise. [samples, 2] each."""
    random = np.random.RandomState(seed)
    count = int(RATE * SECONDS)
    high = np.repeat(random.uniform(1000, 1500, 8), count // 8)
    low = np.repeat(random.uniform(80, 400, 4), count // 4)
    voice = sum(np.sin(2 * np.pi * np.cumsum(high * k) / RATE) / k for k in (1, 2)) * 0.2
    bass = np.sin(2 * np.pi * np.cumsum(low) / RATE) * 0.3 + random.normal(0, 0.003, count)
    return np.stack([voice, voice], 1), np.stack([bass, bass], 1)


def make_songs(folder, adapter):
    os.makedirs(folder, exist_ok=True)
    rows = []
    for index in range(SONGS):
        voice, bass = song(index)
        names = ["song-%d-%s.wav" % (index, part) for part in PARTS]
        for name, data in zip(names, (voice + bass, voice, bass)):
            adapter.save(os.path.join(folder, name), data, RATE)
        rows.append(",".join([*names, str(SECONDS)]))
    head = ",".join(part + "_path" for part in PARTS) + ",duration"
    for name, lines in (("train", rows[:-2]), ("validation", rows[-2:])):
        with open(os.path.join(folder, name + ".csv"), "w") as file:
            file.write("\n".join([head, *lines]) + "\n")


def parameters(work_dir, songs):
    return {
        "train_csv": os.path.join(songs, "train.csv"),
        "validation_csv": os.path.join(songs, "validation.csv"),
        "training_cache": os.path.join(work_dir, "cache", "training"),
        "validation_cache": os.path.join(work_dir, "cache", "validation"),
        "model_dir": os.path.join(work_dir, "model"),
        "mix_name": "mix",
        "instrument_list": ["vocals", "accompaniment"],
        "sample_rate": RATE,
        "frame_length": 256,
        "frame_step": 64,
        "T": 64,
        "F": 128,
        "n_channels": 2,
        "separation_exponent": 2,
        "mask_extension": "zeros",
        "learning_rate": 0.005,
        "batch_size": 4,
        "chunk_duration": 1.0,
        "n_chunks_per_song": 2,
        "train_max_steps": 60,
        "throttle_secs": 1,
        "random_seed": 3,
        "save_checkpoints_steps": 60,
        "save_summary_steps": 60,
        "model": {"type": "unet.unet", "params": {"conv_n_filters": [4, 8, 8, 16, 16, 16]}},
    }


def train(params, adapter, songs):
    estimator = tf.estimator.Estimator(
        model_fn=model_fn,
        model_dir=params["model_dir"],
        params=params,
        config=tf.estimator.RunConfig(
            save_checkpoints_steps=params["save_checkpoints_steps"],
            tf_random_seed=params["random_seed"],
            save_summary_steps=params["save_summary_steps"],
            keep_checkpoint_max=2,
        ),
    )
    metrics, _ = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(
            functools.partial(get_training_dataset, params, adapter, songs), max_steps=params["train_max_steps"]
        ),
        tf.estimator.EvalSpec(
            functools.partial(get_validation_dataset, params, adapter, songs),
            steps=None,
            throttle_secs=params["throttle_secs"],
        ),
    )
    ModelProvider.writeProbe(params["model_dir"])
    return {key: float(value) for key, value in metrics.items()}


def ratio(true, found):
    """Signal to distortion in dB."""
    return float(10 * np.log10(np.sum(true**2) / np.sum((true - found) ** 2)))


def prepare(work_dir):
    """Writes songs/ and config.json. Returns the parameters in it."""
    songs = os.path.join(work_dir, "songs")
    make_songs(songs, WaveAdapter())
    params = parameters(work_dir, songs)
    with open(os.path.join(work_dir, "config.json"), "w") as file:
        json.dump(params, file)
    return params


def main(work_dir):
    logging.getLogger("spleeter").setLevel(logging.WARNING)  # it tells of every piece that it reads
    songs, adapter = os.path.join(work_dir, "songs"), WaveAdapter()
    params = prepare(work_dir)
    said = {"metrics": train(params, adapter, songs)}

    separator = Separator(os.path.join(work_dir, "config.json"), multiprocess=False)
    mix, *true = (adapter.load(os.path.join(songs, "song-%d-%s.wav" % (SONGS - 1, part)))[0] for part in PARTS)
    found = separator.separate(mix)
    for part, signal in zip(PARTS[1:], true):
        # What a model that cannot tell the parts apart would give: half of the mix for each.
        said[part] = {"halved": ratio(signal, mix / 2), "separated": ratio(signal, found[part])}
    print(json.dumps(said))


if __name__ == "__main__":
    (prepare if sys.argv[2:] == ["prepare"] else main)(sys.argv[1])
