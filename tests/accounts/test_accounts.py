"""People, tokens, one-time links, and requests that come twice."""

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from django.db import connections
from django.test import Client

from apps.accounts.models import ApiToken
from apps.accounts.selectors import principal_by_token_digest
from apps.accounts.services import (
    KeyReused,
    digest_of,
    keys_trim,
    once,
    role_set,
    sign_in_failed,
    sign_in_failures_tell,
    sign_in_link_create,
    sign_in_link_use,
    token_create,
    token_revoke,
    user_create,
)
from apps.common.access import Principal
from apps.common.clock import now as clock_now
from apps.common.errors import BadRequest, Conflict, NotFound, Unprocessable
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_after

CALLER = Principal(kind="TOKEN", id=7, name="script", scopes=frozenset({"operate"}))


@pytest.mark.django_db
class TestToken:
    def test_keeps_only_a_digest_of_the_secret(self, now: datetime) -> None:
        _, secret = token_create(name="ci", scopes=["report"], cluster_id=None, by="a", source="API", now=now)

        row = ApiToken.objects.get()

        assert bytes(row.digest) == digest_of(secret)
        assert secret not in repr(row.__dict__)

    def test_names_nobody_once_it_is_revoked(self, now: datetime) -> None:
        token_id, secret = token_create(name="ci", scopes=["read"], cluster_id=None, by="a", source="API", now=now)
        before = principal_by_token_digest(digest_of(secret))

        token_revoke(token_id=token_id, by="a", source="API", now=now)

        assert before is not None
        assert principal_by_token_digest(digest_of(secret)) is None

    @pytest.mark.parametrize(("name", "scopes"), [("", ["read"]), ("x", []), ("x", ["root"])])
    def test_is_refused_without_a_name_or_with_a_scope_that_does_not_exist(
        self, now: datetime, name: str, scopes: list[str]
    ) -> None:
        with pytest.raises(BadRequest):
            token_create(name=name, scopes=scopes, cluster_id=None, by="a", source="API", now=now)


@pytest.mark.django_db
class TestSignInLink:
    @pytest.fixture
    def user_id(self, now: datetime) -> int:
        return user_create(name="ada", role="OPERATOR", email="", by="a", source="API", now=now)

    def test_signs_in_once(self, user_id: int, now: datetime) -> None:
        secret = sign_in_link_create(user_id=user_id, now=now)

        first, second = sign_in_link_use(secret=secret, now=now), sign_in_link_use(secret=secret, now=now)

        assert first is not None
        assert first.pk == user_id
        assert second is None

    def test_is_made_for_nobody_but_a_person(self, now: datetime) -> None:
        with pytest.raises(NotFound):
            sign_in_link_create(user_id=999_999, now=now)

    def test_is_worth_nothing_after_an_hour(
        self, user_id: int, now: datetime, later: Callable[[float], datetime]
    ) -> None:
        secret = sign_in_link_create(user_id=user_id, now=now)

        assert sign_in_link_use(secret=secret, now=later(3601)) is None

    def test_is_not_spent_by_a_look_at_it(self, user_id: int, client: Client) -> None:
        from apps.common.clock import now

        secret = sign_in_link_create(user_id=user_id, now=now())
        looked = client.get(f"/first/{secret}")
        signed_in = client.post(f"/first/{secret}")
        again = Client().post(f"/first/{secret}")

        assert (looked.status_code, signed_in.status_code, again.status_code) == (200, 302, 410)
        assert client.session["_auth_user_id"] == str(user_id)


@pytest.mark.django_db
class TestPeople:
    def test_a_name_is_given_once(self, now: datetime) -> None:
        given: dict[str, Any] = {"name": "ada", "role": "VIEWER", "email": "", "by": "a", "source": "API", "now": now}
        user_create(**given)

        with pytest.raises(Conflict):
            user_create(**given)

    @pytest.mark.parametrize("odd", [{"name": "a\0b"}, {"name": "x" * 151}, {"email": "x" * 255}, {"email": "a\0@b"}])
    def test_what_cannot_be_stored_is_refused(self, now: datetime, odd: dict[str, str]) -> None:
        given: dict[str, Any] = {"name": "ada", "email": "", **odd}

        with pytest.raises(BadRequest):
            user_create(**given, role="VIEWER", by="a", source="API", now=now)

    @pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
    def test_a_name_that_nobody_can_have_does_not_sign_in_and_fails_nothing(self, client: Client, name: str) -> None:
        answer = client.post("/sign-in", {"username": name, "password": "wrong"})

        assert answer.status_code == 200
        assert "_auth_user_id" not in client.session

    def test_the_last_admin_stays_one(self, now: datetime) -> None:
        admin = user_create(name="root", role="ADMIN", email="", by="a", source="API", now=now)

        with pytest.raises(Unprocessable, match="last admin"):
            role_set(user_id=admin, role="VIEWER", by="a", source="API", now=now)


@pytest.mark.django_db
class TestOnce:
    def test_gives_a_repeat_the_first_answer_and_does_nothing(self, now: datetime) -> None:
        done: list[int] = []

        def act() -> tuple[int, dict[str, Any]]:
            done.append(1)
            return 201, {"id": "act_1"}

        answers = [once(principal=CALLER, key="k", body={"a": 1}, now=now, act=act) for _ in range(3)]

        assert answers == [(201, {"id": "act_1"}), (200, {"id": "act_1"}), (200, {"id": "act_1"})]
        assert done == [1]

    def test_refuses_the_same_key_with_another_body(self, now: datetime) -> None:
        once(principal=CALLER, key="k", body={"a": 1}, now=now, act=lambda: (200, {}))

        with pytest.raises(KeyReused):
            once(principal=CALLER, key="k", body={"a": 2}, now=now, act=lambda: (200, {}))

    def test_keeps_nothing_of_an_attempt_that_failed(self, now: datetime) -> None:
        def fail() -> tuple[int, dict[str, Any]]:
            raise BadRequest("no")

        with pytest.raises(BadRequest):
            once(principal=CALLER, key="k", body={}, now=now, act=fail)

        assert once(principal=CALLER, key="k", body={}, now=now, act=lambda: (201, {"done": True})) == (
            201,
            {"done": True},
        )

    def test_keys_of_different_callers_do_not_meet(self, now: datetime) -> None:
        other = Principal(kind="USER", id=7, name="ada", scopes=frozenset())
        once(principal=CALLER, key="k", body={}, now=now, act=lambda: (201, {"who": "script"}))

        assert once(principal=other, key="k", body={}, now=now, act=lambda: (201, {"who": "ada"}))[1] == {"who": "ada"}

    def test_is_forgotten_after_seven_days(self, now: datetime, later: Callable[[float], datetime]) -> None:
        once(principal=CALLER, key="k", body={}, now=now, act=lambda: (201, {"n": 1}))

        gone = keys_trim(now=later(8 * 86_400))

        assert gone == 1


@pytest.mark.django_db(transaction=True)
def test_two_equal_requests_at_once_act_once(now: datetime) -> None:
    done: list[int] = []
    answers: list[dict[str, Any]] = []
    start = threading.Barrier(4)

    def act() -> tuple[int, dict[str, Any]]:
        done.append(1)
        return 201, {"n": len(done)}

    def press() -> None:
        start.wait()
        answers.append(once(principal=CALLER, key="k", body={}, now=now, act=act)[1])
        connections.close_all()

    threads = [threading.Thread(target=press) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert done == [1]
    assert answers == [{"n": 1}] * 4


@pytest.mark.django_db
class TestSignInFailed:
    def told(self) -> list[str]:
        return [event.text for event in events_after(StreamKey.system(), after=0, limit=200)]

    def test_stands_in_the_log_with_name_and_address(self, make_user: Callable[[str], Any], client: Client) -> None:
        make_user("OPERATOR", "ada")

        for _ in range(2):
            client.post("/sign-in", {"username": "ada", "password": "a wrong one"})
        client.post("/sign-in", {"username": "ada", "password": ""})

        assert self.told() == ["“ada” from 127.0.0.1 could not sign in"]

    def test_is_told_once_and_repeats_as_a_count_when_their_window_is_over(self, later: Callable[..., Any]) -> None:
        for second in (0, 1, 2):
            sign_in_failed(name="eve", address="10.0.0.1", source="WEB", now=later(second))

        sign_in_failures_tell(now=later(599))
        early = self.told()
        for second in (600, 700):
            sign_in_failures_tell(now=later(second))

        first = "“eve” from 10.0.0.1 could not sign in"
        assert early == [first]
        assert self.told() == [first, f"{first}, 2 times more since then"]

    def test_of_very_many_names_drowns_nothing(self, now: datetime) -> None:
        for number in range(70):
            sign_in_failed(name=f"eve{number}\x07", address="10.0.0.1", source="WEB", now=now)

        told = self.told()
        assert len(told) == 51
        assert (told[0], told[-1]) == (
            "“eve0\ufffd” from 10.0.0.1 could not sign in",
            "Somebody with yet another name could not sign in",
        )


@pytest.mark.django_db
class TestPassword:
    NEW = {"new_password1": "correct horse battery", "new_password2": "correct horse battery"}

    def test_is_changed_by_who_knows_the_old_one_and_stands_in_the_log(
        self, make_user: Callable[[str], Any], client: Client
    ) -> None:
        make_user("OPERATOR", "ada")
        client.post("/sign-in", {"username": "ada", "password": "a long password"})

        without = client.post("/password", self.NEW)
        wrong = client.post("/password", {**self.NEW, "old_password": "another one"})
        right = client.post("/password", {**self.NEW, "old_password": "a long password"})

        assert [answer.status_code for answer in (without, wrong, right)] == [200, 200, 302]
        told = [(event.kind, event.actor_name) for event in events_after(StreamKey.system(), after=0, limit=9)]
        assert told == [("user.signed_in", "ada"), ("user.password_set", "ada")]

    def test_is_set_without_the_old_one_after_a_one_time_link(
        self, make_user: Callable[[str], Any], client: Client
    ) -> None:
        user = make_user("OPERATOR", "ada")
        client.post(f"/first/{sign_in_link_create(user_id=user.pk, now=clock_now())}")

        first, second = client.post("/password", self.NEW), client.post("/password", self.NEW)

        assert (first.status_code, second.status_code) == (302, 200)
        assert events_after(StreamKey.system(), after=0, limit=1)[0].text == "ada signed in by a one-time link"
