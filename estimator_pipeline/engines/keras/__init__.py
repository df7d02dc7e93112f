"""The Keras 2 engine: `Model.fit` on the workers of TF_CONFIG."""
