"""A repository is read program by program: in several processes, with what is known of it from the last time.

repository.py      its programs, and what comes of each
worker.py          one program after another
processes.py       processes that do so; subprocess_main.py is what they run
results_cache.py   what came of a program, by the contents of its files
"""
