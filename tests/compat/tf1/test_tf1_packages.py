"""Packages written for TensorFlow 1 under `exec --tf1`, unchanged: docs/reference/real-programs.md lists them.

They are installed by tests/programs/tf1/packages.txt.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re

import pytest

from estimator_pipeline.compat.tf1.contrib import files

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

_EXEC = ["-m", "estimator_pipeline", "exec", "--tf1"]
FILES = pytest.mark.skipif(not files.installed(), reason="no files: estimator-pipeline contrib install")


def needs(*packages):
    """Skips where a package is not installed. It must not be imported here: it would bring TensorFlow along."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"no {missing}: pip install --no-deps -r packages.txt")


@pytest.fixture
def ran(run_python, programs, tmp_path):
    """`ran(name)`: what a program printed as JSON at its end."""

    def run(name):
        done = run_python([*_EXEC, programs / "tf1" / name, tmp_path / "model"], timeout=400)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@needs("bert", "tf_slim")
def test_bert(ran):
    """Fine-tuned, started again, evaluated, predicted, exported and served, and another training from its weights."""
    found = ran("bert_classifier.py")
    assert found["accuracy"] > 0.95 and found["predicted"] == pytest.approx(found["accuracy"])
    assert found["step"] == 150 and found["same"] and found["warm"] > 0.9


@needs("tensorflow_gan", "tensorflow_hub", "tensorflow_probability")
def test_tensorflow_gan(ran):
    found = ran("gan_points.py")
    assert found["before"] > 1 and found["after"] < 0.5


_MODEL = """
import tensorflow as tf
import opennmt as onmt

LSTM = {"num_layers": 1, "num_units": 64, "cell_class": tf.nn.rnn_cell.LSTMCell, "dropout": 0.0}


def inputter(side):
    return onmt.inputters.WordEmbedder(vocabulary_file_key=side + "_words_vocabulary", embedding_size=32)


def model():
    return onmt.models.SequenceToSequence(
        source_inputter=inputter("source"),
        target_inputter=inputter("target"),
        encoder=onmt.encoders.BidirectionalRNNEncoder(**LSTM),
        decoder=onmt.decoders.AttentionalRNNDecoder(bridge=onmt.layers.CopyBridge(), **LSTM),
    )
"""
_CONFIG = """
model_dir: run
data:
  train_features_file: train.src
  train_labels_file: train.tgt
  eval_features_file: dev.src
  eval_labels_file: dev.tgt
  source_words_vocabulary: src.vocab
  target_words_vocabulary: tgt.vocab
params: {optimizer: AdamOptimizer, learning_rate: 0.002, param_init: 0.1, beam_width: BEAM}
train: {batch_size: 32, save_checkpoints_steps: 100, train_steps: 300, bucket_width: 1, sample_buffer_size: 3000}
eval: {eval_delay: 0, exporters: last}
infer: {batch_size: 10}
"""


@FILES
@needs("opennmt", "pyonmttok", "rouge", "sacrebleu", "tf_slim")
def test_opennmt(run_python, tmp_path):
    """Trained with evaluations and exports; greedy inference, and by beam search."""
    draw = random.Random(0)
    words = [f"w{number}" for number in range(20)]
    for part, count in (("train", 3000), ("dev", 100), ("test", 20)):
        lines = [" ".join(draw.choices(words, k=draw.randint(3, 6))) for _ in range(count)]
        (tmp_path / f"{part}.src").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / f"{part}.tgt").write_text("".join(f"{line.upper()}\n" for line in lines))
    for side, known in (("src", words), ("tgt", [word.upper() for word in words])):
        (tmp_path / f"{side}.vocab").write_text("\n".join(["<blank>", "<s>", "</s>", *known]) + "\n")
    (tmp_path / "model.py").write_text(_MODEL)

    def run(beam, *arguments):
        (tmp_path / "config.yml").write_text(_CONFIG.replace("BEAM", str(beam)))
        command = [*_EXEC, "-m", "opennmt.bin.main", arguments[0], "--model", "model.py", "--config", "config.yml"]
        done = run_python([*command, *arguments[1:]], cwd=tmp_path, timeout=400)
        assert done.returncode == 0, done.stderr[-4000:]

    run(1, "train_and_eval")
    assert list((tmp_path / "run/export/latest").iterdir())
    for beam in (1, 4):
        run(beam, "infer", "--features_file", "test.src", "--predictions_file", f"found.{beam}")
        expected = (tmp_path / "test.tgt").read_text().splitlines()
        found = (tmp_path / f"found.{beam}").read_text().splitlines()
        assert sum(map(str.__eq__, found, expected)) >= 18, (beam, found)


_NO_DROPOUT = ("dropout", "layer_prepostprocess_dropout", "attention_dropout", "relu_dropout", "label_smoothing")


@needs("tensor2tensor", "gym", "mesh_tensorflow", "tensorflow_gan", "googleapiclient", "tf_slim")
def test_tensor2tensor(run_python, tmp_path):
    """A small Transformer learns to copy; by its own commands, which the package calls t2t-trainer and t2t-decoder."""
    common = ["--data_dir=data", "--output_dir=run", "--problem=algorithmic_identity_binary40", "--model=transformer",
              "--hparams_set=transformer_tiny"]  # fmt: skip
    hparams = ["learning_rate_constant=0.2", "learning_rate_warmup_steps=200", "batch_size=1024"]
    hparams += [f"{name}=0.0" for name in _NO_DROPOUT]

    def run(command, *options):
        done = run_python([*_EXEC, "-m", f"tensor2tensor.bin.{command}", *common, *options], cwd=tmp_path, timeout=500)
        assert done.returncode == 0, done.stderr[-4000:]

    run("t2t_trainer", "--generate_data", "--tmp_dir=tmp", f"--hparams={','.join(hparams)}", "--train_steps=1500",
        "--eval_steps=2", "--local_eval_frequency=1500")  # fmt: skip
    draw = random.Random(1)
    given = [draw.choices("01", k=draw.randint(4, 20)) for _ in range(20)]
    (tmp_path / "given").write_text("".join(f"{' '.join(line)}\n" for line in given))
    run("t2t_decoder", "--decode_hparams=beam_size=4,alpha=0.6", "--decode_from_file=given", "--decode_to_file=found")
    found = [line.split() for line in (tmp_path / "found").read_text().splitlines()]
    right = sum(a == b for line, copy in zip(given, found, strict=True) for a, b in zip(line, copy, strict=False))
    assert right > 0.75 * sum(map(len, given))


@needs("object_detection", "nets", "tf_slim", "pycocotools", "lvis", "cv2", "contextlib2", "lxml")
def test_object_detection(run_python, programs, tmp_path):
    """A small SSD trained, evaluated by COCO's metrics and exported by object_detection's model_main and model_lib."""
    done = run_python([programs / "tf1/detection_squares.py", tmp_path])
    assert done.returncode == 0, done.stderr[-4000:]
    options = ["--pipeline_config_path=pipeline.config", "--model_dir=model", "--num_train_steps=400"]
    done = run_python([*_EXEC, "-m", "object_detection.model_main", *options], cwd=tmp_path, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    (precision,) = re.findall(r"\(AP\) @\[ IoU=0.50 +\| area= +all .+ = (-?[\d.]+)", done.stdout)
    assert float(precision) > 0.5, done.stdout
    assert list((tmp_path / "model/export/Servo").iterdir())
