"""Plotly's script, from the installed wheel: compressed once, named by its content."""

import gzip
import hashlib
from functools import cache
from pathlib import Path

import plotly


@cache
def plotly_script() -> tuple[bytes, bytes]:
    """Return plotly.js as it is, and gzipped."""
    raw = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_bytes()
    return raw, gzip.compress(raw, 6, mtime=0)


@cache
def plotly_tag() -> str:
    """Return a tag of the script's content: it stands in its address, so a browser may keep it for good."""
    return hashlib.sha256(plotly_script()[0]).hexdigest()[:16]
