"""One of two workers: what TensorFlow hands it of a dataset whose records it shares out by the hint.

    python hinted.py STEPS START_STEP

Prints the labels that this worker's replica gets at each step, a line a step. The labels are the records' numbers.
"""

import sys

import numpy as np

import estimator_pipeline as ep

tf = ep.compat.install()


def main(steps, start):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    ids = np.arange(100)
    data = ep.inputs.from_arrays(
        (ids.astype(np.float32)[:, None], ids), global_batch_size=12, seed=3, shard_policy="hint", start_step=start
    )
    print("policy", data.train_input_fn().options().experimental_distribute.auto_shard_policy.name)
    batches = iter(strategy.experimental_distribute_dataset(data.train_input_fn()))

    @tf.function
    def step(batches):
        return strategy.run(lambda features, labels: (features, labels), args=next(batches))

    for _ in range(steps):
        features, labels = step(batches)
        assert features.numpy()[:, 0].tolist() == labels.numpy().tolist()
        print("read", *labels.numpy().tolist(), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
