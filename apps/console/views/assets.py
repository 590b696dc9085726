"""Plotly's script, kept by browsers for a year."""

from django.http import HttpRequest, HttpResponse

from apps.console.selectors.plotly import plotly_script

YEAR_S = 31_536_000


def plotly_js(request: HttpRequest, tag: str) -> HttpResponse:  # noqa: ARG001 - the tag makes the address change with the script
    """Serve the script; the address holds a tag of the content, so a browser keeps it for a year."""
    raw, packed = plotly_script()
    zipped = "gzip" in request.headers.get("Accept-Encoding", "")
    response = HttpResponse(packed if zipped else raw, content_type="text/javascript; charset=utf-8")
    if zipped:
        response["Content-Encoding"] = "gzip"
    response["Vary"] = "Accept-Encoding"
    response["Cache-Control"] = f"public, max-age={YEAR_S}, immutable"
    return response
