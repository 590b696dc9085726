"""Names in the addresses of pages."""

import re


class NameConverter:
    """One part of an address for whatever a node or a cluster was ever called, so that no link to it fails to be made.

    A slash would cut the part in two, dots alone are taken away by browsers, and nothing at all is no part.
    """

    regex = r"[^/]+"

    def to_python(self, value: str) -> str:
        """Return the name that a part of an address stands for."""
        return "" if value == "~" else value.replace("~2F", "/").replace("~2E", ".").replace("~7E", "~")

    def to_url(self, value: str | None) -> str:
        """Return the part of an address that stands for a name."""
        part = (value or "").replace("~", "~7E").replace("/", "~2F")
        return re.sub(r"\A\.+\Z", lambda dots: "~2E" * len(dots.group()), part) or "~"
