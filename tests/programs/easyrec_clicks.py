"""Generated clicks and a DeepFM pipeline for EasyRec: train.csv, eval.csv and pipeline.config.

    python easyrec_clicks.py WORK_DIR
"""

import os
import sys

import numpy as np

USERS, ITEMS, STEPS = 60, 40, 400

CONFIG = """
train_input_path: "{work_dir}/train.csv"
eval_input_path: "{work_dir}/eval.csv"
model_dir: "{work_dir}/model"

train_config {{
  optimizer_config {{
    adam_optimizer {{
      learning_rate {{ constant_learning_rate {{ learning_rate: 0.01 }} }}
    }}
    use_moving_average: false
  }}
  num_steps: {steps}
  save_checkpoints_steps: 200
  log_step_count_steps: 100
}}
eval_config {{ metrics_set {{ auc {{}} }} }}
export_config {{ exporter_type: "final" }}

data_config {{
  input_type: CSVInput
  separator: ","
  batch_size: 128
  label_fields: "label"
  input_fields {{ input_name: "label" input_type: INT64 default_val: "0" }}
  input_fields {{ input_name: "user" input_type: STRING default_val: "" }}
  input_fields {{ input_name: "item" input_type: INT64 default_val: "0" }}
  input_fields {{ input_name: "price" input_type: DOUBLE default_val: "0" }}
}}
feature_config {{
  features {{ input_names: "user" feature_type: IdFeature hash_bucket_size: 1000 embedding_dim: 8 }}
  features {{ input_names: "item" feature_type: IdFeature num_buckets: {items} embedding_dim: 8 }}
  features {{ input_names: "price" feature_type: RawFeature boundaries: [0.25, 0.5, 0.75] embedding_dim: 8 }}
}}
model_config {{
  model_class: "DeepFM"
  feature_groups {{
    group_name: "deep" feature_names: ["user", "item", "price"] wide_deep: DEEP
  }}
  feature_groups {{
    group_name: "wide" feature_names: ["user", "item", "price"] wide_deep: WIDE
  }}
  deepfm {{
    dnn {{ hidden_units: [32, 16] }}
    final_dnn {{ hidden_units: [16] }}
    wide_output_dim: 4
    l2_regularization: 1e-6
  }}
  embedding_regularization: 1e-5
}}
"""


def clicks():
    """Rows of label, user, item and price: users click items of their taste that are cheap."""
    random = np.random.RandomState(3)
    tastes, genres = random.normal(size=[USERS, 3]), random.normal(size=[ITEMS, 3])
    users, items = random.randint(USERS, size=6000), random.randint(ITEMS, size=6000)
    prices = random.uniform(size=6000)
    scores = np.sum(tastes[users] * genres[items], axis=1) + 2 * (0.5 - prices)
    labels = (scores + random.normal(scale=0.5, size=6000) > 0).astype(int)
    return ["%d,user-%d,%d,%.4f" % row for row in zip(labels, users, items, prices)]


def main(work_dir):
    rows = clicks()
    for name, part in (("train.csv", rows[:5000]), ("eval.csv", rows[5000:])):
        with open(os.path.join(work_dir, name), "w") as file:
            file.write("\n".join(part) + "\n")
    with open(os.path.join(work_dir, "pipeline.config"), "w") as file:
        file.write(CONFIG.format(work_dir=work_dir, steps=STEPS, items=ITEMS))


if __name__ == "__main__":
    main(sys.argv[1])
