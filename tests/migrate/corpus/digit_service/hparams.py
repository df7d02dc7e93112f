"""Hyperparameters: defaults by model, a JSON file over them, and `name=value` over that."""

import json


class HParams(dict):
    """A dictionary whose values are attributes too."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError('unknown hyperparameter %r' % name)

    __setattr__ = dict.__setitem__

    def override(self, pairs):
        for pair in pairs:
            name, text = pair.split('=', 1)
            kind = type(self[name])
            self[name] = json.loads(text) if kind in (list, bool) else kind(text)
        return self


DEFAULTS = {
    'cnn': HParams(filters=[16, 32], dense=32, learning_rate=0.005, optimizer='adam', batch_size=64, dropout=0.2),
    'mlp': HParams(layers=[64, 32], learning_rate=0.1, optimizer='sgd', batch_size=32, dropout=0.0),
}


def load(model, path=None, overrides=()):
    found = HParams(DEFAULTS[model])
    if path:
        with open(path) as f:
            found.update(json.load(f))
    return found.override(overrides)
