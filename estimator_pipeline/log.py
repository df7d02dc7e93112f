"""The logger of what this package says beside an Estimator: a child of TensorFlow's.

So its lines come where the Estimator's come, and follow `tf.compat.v1.logging.set_verbosity`. absl's logger would not
do: with its first message it gives the root logger a handler, and from then on every line of TensorFlow comes twice.
"""

from __future__ import annotations

import logging

logger = logging.getLogger("tensorflow.estimator_pipeline")
