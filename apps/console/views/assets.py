"""Plotly's script, from the installed wheel: compressed once, cached by its version."""

import gzip
import hashlib
from functools import cache
from pathlib import Path

import plotly
from django.http import HttpRequest, HttpResponse

YEAR_S = 31_536_000


@cache
def plotly_script() -> tuple[bytes, bytes, str]:
    """Return plotly.js as it is, gzipped, and a tag of its content."""
    raw = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_bytes()
    return raw, gzip.compress(raw, 6, mtime=0), hashlib.sha256(raw).hexdigest()[:16]


def plotly_js(request: HttpRequest, tag: str) -> HttpResponse:  # noqa: ARG001 - the tag makes the address change with the script
    """Serve the script; the address holds a tag of the content, so a browser keeps it for a year."""
    raw, packed, _ = plotly_script()
    zipped = "gzip" in request.headers.get("Accept-Encoding", "")
    response = HttpResponse(packed if zipped else raw, content_type="text/javascript; charset=utf-8")
    if zipped:
        response["Content-Encoding"] = "gzip"
    response["Vary"] = "Accept-Encoding"
    response["Cache-Control"] = f"public, max-age={YEAR_S}, immutable"
    return response
