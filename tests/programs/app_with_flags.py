"""A program of the absl kind: flags, and an app that ends the process."""

import atexit

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 1, "How many steps.")
flags.DEFINE_string("name", None, "A name.", required=True)


def main(argv):
    print("main", argv[1:], FLAGS.steps, FLAGS.name)
    return FLAGS.steps


if __name__ == "__main__":
    atexit.register(lambda: print("at exit", __name__))
    app.run(main)
