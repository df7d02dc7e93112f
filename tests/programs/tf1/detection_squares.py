"""Generated pictures and an SSD pipeline for object_detection: train.record, eval.record, labels.pbtxt, pipeline.config.

    python detection_squares.py WORK_DIR
"""

import os
import sys

import numpy as np
import tensorflow as tf

SIZE = 96
NAMES = ("square", "ring")

CONFIG = """
model { ssd {
  num_classes: 2
  box_coder { faster_rcnn_box_coder { y_scale: 10 x_scale: 10 height_scale: 5 width_scale: 5 } }
  matcher { argmax_matcher {
    matched_threshold: 0.5 unmatched_threshold: 0.5 ignore_thresholds: false
    negatives_lower_than_unmatched: true force_match_for_each_row: true
  } }
  similarity_calculator { iou_similarity {} }
  anchor_generator { ssd_anchor_generator {
    num_layers: 6 min_scale: 0.2 max_scale: 0.9 aspect_ratios: 1.0 reduce_boxes_in_lowest_layer: false
  } }
  image_resizer { fixed_shape_resizer { height: 96 width: 96 } }
  box_predictor { convolutional_box_predictor {
    min_depth: 0 max_depth: 0 num_layers_before_predictor: 0 use_dropout: false kernel_size: 1 box_code_size: 4
    conv_hyperparams { HYPERPARAMS }
  } }
  feature_extractor {
    type: "ssd_mobilenet_v2" min_depth: 8 depth_multiplier: 0.35
    # The moving averages of its batch normalization would need thousands of steps.
    override_base_feature_extractor_hyperparams: true
    conv_hyperparams { HYPERPARAMS }
  }
  loss {
    classification_loss { weighted_sigmoid {} }
    localization_loss { weighted_smooth_l1 {} }
    classification_weight: 1 localization_weight: 1
    hard_example_miner {
      num_hard_examples: 3000 iou_threshold: 0.99 loss_type: CLASSIFICATION max_negatives_per_positive: 3
    }
  }
  normalize_loss_by_num_matches: true
  post_processing {
    batch_non_max_suppression {
      score_threshold: 0.0001 iou_threshold: 0.5 max_detections_per_class: 5 max_total_detections: 5
    }
    score_converter: SIGMOID
  }
} }
train_config {
  batch_size: 16
  optimizer {
    adam_optimizer { learning_rate { constant_learning_rate { learning_rate: 0.003 } } }
    use_moving_average: false
  }
}
train_input_reader {
  label_map_path: "WORK_DIR/labels.pbtxt" tf_record_input_reader { input_path: "WORK_DIR/train.record" }
}
eval_config { metrics_set: "coco_detection_metrics" num_visualizations: 0 }
eval_input_reader {
  label_map_path: "WORK_DIR/labels.pbtxt" tf_record_input_reader { input_path: "WORK_DIR/eval.record" }
  shuffle: false num_epochs: 1
}
"""
HYPERPARAMS = """
activation: RELU_6
regularizer { l2_regularizer { weight: 0.00004 } }
initializer { truncated_normal_initializer { stddev: 0.03 } }
batch_norm { train: true scale: true center: true decay: 0.9 epsilon: 0.001 }
"""


def feature(values):
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def example(random, index):
    """A picture of noise with a bright square, or with the edge of one."""
    picture = random.randint(0, 60, size=[SIZE, SIZE, 3]).astype(np.uint8)
    kind, side = random.randint(2), random.randint(24, 48)
    top, left = random.randint(0, SIZE - side, size=2)
    inside = picture[top : top + side, left : left + side]
    background = inside[6:-6, 6:-6].copy()
    inside[:] = random.randint(180, 255, size=3)
    if NAMES[kind] == "ring":
        inside[6:-6, 6:-6] = background
    return tf.train.Example(features=tf.train.Features(feature={
        "image/encoded": feature([tf.io.encode_png(picture).numpy()]),
        "image/format": feature([b"png"]),
        "image/filename": feature([b"%d.png" % index]),
        "image/source_id": feature([b"%d" % index]),
        "image/height": feature([SIZE]),
        "image/width": feature([SIZE]),
        "image/object/bbox/ymin": feature([top / SIZE]),
        "image/object/bbox/xmin": feature([left / SIZE]),
        "image/object/bbox/ymax": feature([(top + side) / SIZE]),
        "image/object/bbox/xmax": feature([(left + side) / SIZE]),
        "image/object/class/text": feature([NAMES[kind].encode()]),
        "image/object/class/label": feature([int(kind) + 1]),
    }))  # fmt: skip


def main(work_dir):
    random = np.random.RandomState(3)
    for name, count in (("train.record", 400), ("eval.record", 50)):
        with tf.io.TFRecordWriter(os.path.join(work_dir, name)) as file:
            for index in range(count):
                file.write(example(random, index).SerializeToString())
    with open(os.path.join(work_dir, "labels.pbtxt"), "w") as file:
        file.writelines("item { id: %d name: '%s' }\n" % item for item in enumerate(NAMES, 1))
    with open(os.path.join(work_dir, "pipeline.config"), "w") as file:
        file.write(CONFIG.replace("HYPERPARAMS", HYPERPARAMS).replace("WORK_DIR", work_dir))


if __name__ == "__main__":
    main(sys.argv[1])
