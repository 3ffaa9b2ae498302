"""Random problems, settings, commands, threads, kills, files and extreme numbers, for as long as one lets it run.

    make adversary [MINUTES=30] [ONLY=kills] [COUNT=100] [SEED=12]

Each kind of attack is a module with a function ``attack(seed, counts)``: it draws a case from the seed, counts what it
compared, and raises whatever it finds. ``python -m adversary`` (``__main__.py``) runs them in turns, each in a process
of its own.
"""
