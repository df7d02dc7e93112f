"""BERT of 2018, by the package bert-tensorflow: fine-tuned on generated sentences, started again, exported.

    bert_classifier.py MODEL_DIR
"""

from __future__ import absolute_import, division, print_function

import json
import os
import random
import sys

import tensorflow as tf
from bert import modeling, run_classifier, tokenization

tf.logging.set_verbosity(tf.logging.INFO)
GOOD, BAD = "good great fine lovely happy".split(), "bad awful poor ugly sad".split()
FILL = "the a film book day was is very quite it this that one we saw had".split()
LENGTH = 16


def examples(count, seed):
    draw = random.Random(seed)
    for number in range(count):
        label = draw.randint(0, 1)
        words = [draw.choice(FILL) for _ in range(draw.randint(5, 10))]
        words.insert(draw.randrange(len(words)), draw.choice(GOOD if label else BAD))
        yield run_classifier.InputExample("%d" % number, " ".join(words), label=str(label))


def build(model_dir, tokenizer, init_checkpoint=None, steps=150):
    config = modeling.BertConfig(
        vocab_size=len(tokenizer.vocab), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32,
    )
    model_fn = run_classifier.model_fn_builder(
        bert_config=config, num_labels=2, init_checkpoint=init_checkpoint, learning_rate=1e-3, num_train_steps=steps,
        num_warmup_steps=15, use_tpu=False, use_one_hot_embeddings=False,
    )
    run_config = tf.contrib.tpu.RunConfig(
        model_dir=model_dir,
        save_checkpoints_steps=100,
        tpu_config=tf.contrib.tpu.TPUConfig(
            iterations_per_loop=100, per_host_input_for_training=tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2
        ),
    )
    return tf.contrib.tpu.TPUEstimator(
        use_tpu=False, model_fn=model_fn, config=run_config, train_batch_size=32, eval_batch_size=8, predict_batch_size=8
    )


def serving_input_receiver_fn():
    names = ("input_ids", "input_mask", "segment_ids")
    inputs = {name: tf.placeholder(tf.int64, [None, LENGTH], name=name) for name in names}
    inputs["label_ids"] = tf.placeholder(tf.int64, [None], name="label_ids")
    return tf.estimator.export.build_raw_serving_input_receiver_fn(inputs)()


def main(_):
    model_dir = sys.argv[1]
    tf.gfile.MakeDirs(model_dir)
    vocabulary = os.path.join(model_dir, "vocab.txt")
    with tf.gfile.GFile(vocabulary, "w") as writer:
        writer.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + GOOD + BAD + FILL))
    tokenizer = tokenization.FullTokenizer(vocab_file=vocabulary, do_lower_case=True)

    def features(count, seed):
        return run_classifier.convert_examples_to_features(list(examples(count, seed)), ["0", "1"], LENGTH, tokenizer)

    def input_fn(made, is_training):
        return run_classifier.input_fn_builder(made, seq_length=LENGTH, is_training=is_training, drop_remainder=False)

    train, held_out = features(1200, 1), features(200, 2)
    estimator = build(model_dir, tokenizer)
    estimator.train(input_fn=input_fn(train, True), max_steps=120)
    # Started again, as after a crash.
    estimator = build(model_dir, tokenizer)
    estimator.train(input_fn=input_fn(train, True), max_steps=150)
    found = estimator.evaluate(input_fn=input_fn(held_out, False), steps=None)
    predictions = [each["probabilities"] for each in estimator.predict(input_fn=input_fn(held_out, False))]
    right = sum(each.argmax() == feature.label_id for each, feature in zip(predictions, held_out)) / 200.0
    folder = estimator.export_saved_model(os.path.join(model_dir, "export"), serving_input_receiver_fn)
    served = tf.contrib.predictor.from_saved_model(folder)(
        {name: [getattr(feature, name if name != "label_ids" else "label_id") for feature in held_out]
         for name in ("input_ids", "input_mask", "segment_ids", "label_ids")}
    )
    # Another training from this one's weights, by their names.
    checkpoint = tf.train.latest_checkpoint(model_dir)
    again = build(os.path.join(model_dir, "second"), tokenizer, init_checkpoint=checkpoint, steps=10)
    again.train(input_fn=input_fn(train, True), max_steps=1)
    warm = again.evaluate(input_fn=input_fn(held_out, False), steps=None)
    print(
        json.dumps(
            {
                "accuracy": float(found["eval_accuracy"]),
                "step": int(found["global_step"]),
                "predicted": float(right),
                "same": bool(abs(served["probabilities"] - predictions).max() < 1e-5),
                "warm": float(warm["eval_accuracy"]),
            }
        )
    )


if __name__ == "__main__":
    tf.app.run()
