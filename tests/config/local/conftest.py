import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.config.local.marked import Marked


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Marked]:
    found = Marked(tmp_path)
    yield found
    for pid in found.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
