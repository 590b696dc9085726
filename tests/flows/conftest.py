"""What flows share with the tests of pages: a live site, and an incident to look at."""

from tests.console.conftest import elsewhere, find, incident, site

__all__ = ["elsewhere", "find", "incident", "site"]
