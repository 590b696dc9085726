from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.marked import Marked, marking


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Marked]:
    """Processes of this test, none of which outlives it."""
    with marking(tmp_path) as found:
        yield found
