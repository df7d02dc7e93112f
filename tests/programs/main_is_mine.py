"""Prints what a program can see of how it was started, one line each."""

import atexit
import inspect
import multiprocessing
import os
import pickle
import sys


class Mine:
    def __init__(self, value):
        self.value = value


def double(one):
    return Mine(2 * one.value)


def report():
    print("argv", sys.argv)
    print("name", __name__, __doc__ is not None, __package__, __spec__ and __spec__.name)
    print("file", __file__, type(__loader__).__name__)
    print("main", sys.modules["__main__"].__dict__ is globals(), sys.modules["__main__"].Mine is Mine)
    print("path", sys.path[0])
    print("names", sorted(name for name in globals() if not name.startswith("__")))
    print("builtins", callable(__builtins__.print))
    print("cwd", os.getcwd())
    print("stdin", sys.stdin.read())
    print("pickled", pickle.loads(pickle.dumps(Mine(3))).value, Mine.__module__)
    print("source", inspect.getsource(double).splitlines()[0])
    if "spawn" in sys.argv:
        spawn()


def spawn():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("spawned", [one.value for one in pool.map(double, [Mine(1), Mine(2)])])


if __name__ == "__main__":
    atexit.register(lambda: print("at exit", sys.modules["__main__"].Mine is Mine, Mine(5).value))
    report()
