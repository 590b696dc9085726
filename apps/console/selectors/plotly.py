"""Plotly's script, from the installed wheel: compressed once, named by its content."""

import gzip
import hashlib
import re
from functools import cache
from pathlib import Path

import plotly

STYLE_ID = re.compile(rb'getElementById\("([0-9a-f]{64})"\)')


@cache
def plotly_script() -> tuple[bytes, bytes]:
    """Return plotly.js as it is, and gzipped."""
    raw = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_bytes()
    return raw, gzip.compress(raw, 6, mtime=0)


@cache
def plotly_style_ids() -> list[str]:
    """Return the ids of style elements that the script would write into a page for its maps.

    Our policy forbids them and we draw no maps; the script leaves them out where an element of that id is there already.
    """
    return sorted({found.decode() for found in STYLE_ID.findall(plotly_script()[0])})


@cache
def plotly_tag() -> str:
    """Return a tag of the script's content: it stands in its address, so a browser may keep it for good."""
    return hashlib.sha256(plotly_script()[0]).hexdigest()[:16]
