"""Command line of the training: python -m digit_service.train --model cnn --data digits.npz --job-dir DIR."""

import argparse
import json
import os

from digit_service import hparams, models
from digit_service.inputs import NpzInputs
from digit_service.tf_compat import tf


def get_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--model', default='cnn', choices=sorted(models.MODELS))
    parser.add_argument('--data', required=True)
    parser.add_argument('--job-dir', required=True)
    parser.add_argument('--max-steps', type=int, default=500)
    parser.add_argument('--hparams-file')
    parser.add_argument('--set', dest='overrides', action='append', default=[], metavar='NAME=VALUE')
    parser.add_argument('--verbosity', default='INFO', choices=['DEBUG', 'INFO', 'WARN', 'ERROR'])
    return parser.parse_args(argv)


def run_experiment(args):
    params = hparams.load(args.model, args.hparams_file, args.overrides)
    inputs = NpzInputs(args.data, params.batch_size)
    run_config = tf.estimator.RunConfig(
        model_dir=args.job_dir, tf_random_seed=21, save_checkpoints_steps=250,
        session_config=tf.ConfigProto(intra_op_parallelism_threads=2))
    estimator = tf.estimator.Estimator(
        model_fn=models.get_model_fn(args.model), config=run_config, params=params)

    train_spec = tf.estimator.TrainSpec(inputs.train, max_steps=args.max_steps)
    exporter = tf.estimator.FinalExporter('service', inputs.serving_receiver_fn, as_text=False)
    eval_spec = tf.estimator.EvalSpec(
        inputs.evaluate, steps=None, exporters=[exporter], name='test', throttle_secs=0)
    tf.estimator.train_and_evaluate(estimator, train_spec, eval_spec)

    metrics = estimator.evaluate(inputs.evaluate, name='final')
    with open(os.path.join(args.job_dir, 'metrics.json'), 'w') as f:
        json.dump({name: float(value) for name, value in metrics.items()}, f)
    return metrics


def main():
    args = get_args()
    tf.logging.set_verbosity(args.verbosity)
    metrics = run_experiment(args)
    print('model %s: accuracy %.4f' % (args.model, metrics['accuracy']))


if __name__ == '__main__':
    main()
