"""Random problems, settings, commands, threads, kills, files and extreme numbers, until a time limit.

    make adversary [MINUTES=30] [ONLY=kills] [COUNT=100] [SEED=12]

Each kind of test is a module with a function ``run_case(seed, counts)``: it draws a case from the seed, counts its
comparisons, and raises an error for a finding. ``python -m adversary`` (``__main__.py``) runs them in turns, each in a
separate process.
"""
