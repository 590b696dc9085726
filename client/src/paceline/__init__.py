"""Paceline's client: per-rank step times and node gauges of a training run, with the standard library alone.

pace = paceline.start()
for step in range(first, last):
    with pace.step(step):
        with pace.phase("data"): ...
        with pace.phase("compute"): ...
    pace.log(loss=loss)
pace.finish()
"""

from paceline.begin import start
from paceline.pace import Pace
from paceline.version import VERSION as __version__

__all__ = ["Pace", "__version__", "start"]
