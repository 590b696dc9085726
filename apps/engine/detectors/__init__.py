"""Every cause Paceline can tell, one module each: a module here with a `DETECTOR` is a cause, nothing else to edit."""

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

from apps.engine.detection import Detector
from apps.engine.errors import EngineError


class DetectorUnknown(EngineError):
    """No module of `apps.engine.detectors` has this name."""

    code = "detector_unknown"


@cache
def registry() -> Mapping[str, Detector]:
    """Return every detector by its cause, which is its module's name, in alphabetical order."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))
    detectors = {name: import_module(f"{__name__}.{name}").DETECTOR for name in names}
    wrong = [name for name, detector in detectors.items() if detector.cause != name]
    if wrong:
        raise DetectorUnknown("A detector's cause must be its module's name.", modules=wrong)
    return MappingProxyType(detectors)


def detector_of(cause: str) -> Detector:
    """Return the detector of a cause. Raises DetectorUnknown."""
    try:
        return registry()[cause]
    except KeyError:
        raise DetectorUnknown("There is no such cause.", cause=cause) from None
