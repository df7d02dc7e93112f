"""One worker of three that sum sparse gradients of uneven numbers of rows, several together and one alone.

    sparse_sums.py

Prints how many collectives gather, and the bits of what came out.
"""

import json
import os

import numpy as np
import tensorflow as tf

OWN = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
ROWS = {"floats": (5, 0, 3), "doubles": (2, 2, 2), "cubes": (1, 7, 4), "whole": (3, 1, 2), "halves": (4, 2, 1)}
SHAPES = {"floats": (), "doubles": (3,), "cubes": (2, 5), "whole": (2,), "halves": (4,)}
TYPES = {"floats": "float32", "doubles": "float64", "cubes": "float32", "whole": "int64", "halves": "float16"}
INDEX = {"cubes": np.int32}


def slices(name):
    chance = np.random.default_rng([OWN, *name.encode()])
    rows = ROWS[name][OWN]
    values = (100 * chance.standard_normal((rows, *SHAPES[name]))).astype(TYPES[name])
    if name == "cubes":
        # Which of the many NaNs it is.
        values.view(np.uint32)[..., 0] = 0x7FA00001
    indices = chance.integers(0, 6, rows).astype(INDEX.get(name, np.int64))
    # As a data set's last batch: the graph does not know how many there are.
    unknown = tf.compat.v1.placeholder_with_default
    return tf.IndexedSlices(
        unknown(values, [None, *SHAPES[name]]), unknown(indices, [None]), tf.constant([6, *SHAPES[name]])
    )


strategy = tf.distribute.MultiWorkerMirroredStrategy()


@tf.function
def summed(names, reduce_op):
    def replica():
        given = {name: slices(name) for name in names}
        given["dense"] = tf.constant([1.5, 2.5]) * (OWN + 1)
        return tf.distribute.get_replica_context().all_reduce(reduce_op, given)

    return strategy.run(replica)


def gathers(*arguments):
    graph = summed.get_concrete_function(*arguments).graph
    inner = [function.graph for function in getattr(graph, "_functions", {}).values() if hasattr(function, "graph")]
    return sum(op.type.startswith("CollectiveGather") for one in (graph, *inner) for op in one.get_operations())


SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
for names, reduce_op in ((tuple(ROWS), SUM), (("floats", "doubles", "cubes"), MEAN), (("floats",), SUM)):
    found = {}
    for name, one in summed(names, reduce_op).items():
        parts = [one]
        if isinstance(one, tf.IndexedSlices):
            parts = [one.values, one.indices, one.dense_shape]
            assert one.values.shape[0] == sum(ROWS[name]), one
        found[name] = [f"{part.dtype.name} {part.numpy().tobytes().hex()}" for part in parts]
    print("found", reduce_op.name, len(names), gathers(names, reduce_op), json.dumps(found), flush=True)
