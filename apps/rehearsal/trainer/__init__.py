"""A small data-parallel training program of real processes: the practice run.

It knows nothing of Django and imports standard library, numpy and `paceline` only: it is started by a launcher with
arguments and environment, as any user's program is, and reports through the same client.
"""
