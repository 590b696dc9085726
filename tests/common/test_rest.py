"""Bad data is never a failure of ours: what cannot be read is said in one shape, and nothing of it reaches the database."""

import base64
import gzip
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from django.test import Client

from apps.common import rest

Api = Callable[..., Client]

LISTINGS = (
    "/api/v1/runs",
    "/api/v1/runs/dense-7b/attempts",
    "/api/v1/runs/dense-7b/events",
    "/api/v1/incidents",
    "/api/v1/actions",
    "/api/v1/findings",
    "/api/v1/nodes",
)


def cursor(position: Any) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode().rstrip("=")


@pytest.mark.parametrize("path", LISTINGS)
@pytest.mark.parametrize("position", ["x", [1], [1, 2], {"a": 1}, 2**63, True, ["\0", "x"]], ids=repr)
def test_a_cursor_of_another_listing_is_told_so(run: Any, api: Api, path: str, position: Any) -> None:
    answer = api("read").get(f"{path}?cursor={cursor(position)}")

    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "cursor: not a token of this listing."


class TestBody:
    def put(self, api: Api, body: bytes, **headers: str) -> Any:
        return api("report", "operate").generic("PUT", "/api/v1/runs/new", body, headers=headers)

    @pytest.mark.parametrize("words", [{"name": "a\0b"}, {"model": {"a": ["x", {"b": "\0"}]}}, {"model": {"\0": 1}}])
    def test_with_a_nul_anywhere_is_refused(self, db: None, api: Api, words: dict[str, Any]) -> None:
        answer = self.put(api, orjson.dumps(words))

        assert answer.status_code == 400
        assert "NUL" in answer.json()["error"]["message"]

    def test_with_a_backslash_before_the_letters_of_a_nul_is_taken(self, db: None, api: Api) -> None:
        assert self.put(api, orjson.dumps({"name": "\\u0000"})).json()["name"] == "\\u0000"

    def test_may_be_gzip(self, db: None, api: Api) -> None:
        answer = self.put(api, gzip.compress(b'{"name": "packed"}'), **{"Content-Encoding": "gzip"})

        assert (answer.status_code, answer.json()["name"]) == (201, "packed")

    def test_that_says_gzip_and_is_not_is_told_so(self, db: None, api: Api) -> None:
        assert self.put(api, b"{}", **{"Content-Encoding": "gzip"}).status_code == 400

    @pytest.mark.parametrize("packed", [False, True])
    def test_past_its_bound_is_413(self, db: None, api: Api, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
        monkeypatch.setattr(rest, "MOST_BODY_BYTES", 1000)
        body = orjson.dumps({"name": "x" * 5000})

        answer = self.put(api, gzip.compress(body), **{"Content-Encoding": "gzip"}) if packed else self.put(api, body)

        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
