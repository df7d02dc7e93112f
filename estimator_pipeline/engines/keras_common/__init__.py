"""What the Keras 2 and Keras 3 engines share: a training around a model, its callbacks, checkpoints and exports."""
