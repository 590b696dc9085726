"""What many tests start from: a moment, a cluster, a run with an open attempt, people, callers, a live site."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

os.environ.setdefault(
    "DJANGO_ALLOW_ASYNC_UNSAFE", "true"
)  # the browser's driver keeps an event loop in the test's thread


@pytest.fixture(scope="session", autouse=True)
def quick_passwords() -> None:
    """Hash passwords quickly: what makes hashing safe makes each signed-in test half a second longer."""
    from django.conf import settings

    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """Let this database, and no other, be emptied between two tests: the log refuses that everywhere else."""
    from django.db import connection

    with django_db_blocker.unblock():
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} SET paceline.truncate = 'on'")
        connection.close()
        connection.close_pool()  # connections have it from their beginning


NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@pytest.fixture
def now() -> datetime:
    """The moment at which tests happen."""
    return NOW


@pytest.fixture
def later() -> Callable[[float], datetime]:
    """A moment some seconds after `now`."""
    return lambda seconds: NOW + timedelta(seconds=seconds)


@pytest.fixture
def cluster(db: None, now: datetime) -> int:
    """A cluster named `north`."""
    from apps.fleet.services import cluster_ensure

    return cluster_ensure(name="north", now=now)


@pytest.fixture
def make_run(cluster: int, now: datetime) -> Callable[..., Any]:
    """Make a run: `make_run("dense-7b", steps_planned=1000)` gives its row."""
    from apps.runs.selectors import run_by_id
    from apps.runs.services import run_put

    def make(slug: str = "dense-7b", **fields: Any) -> Any:
        run_id, _ = run_put(slug=slug, cluster_id=cluster, fields=fields, by="test", source="API", now=now)
        return run_by_id(run_id)

    return make


@pytest.fixture
def run(make_run: Callable[..., Any]) -> Any:
    """A run `dense-7b`."""
    return make_run()


@pytest.fixture
def make_attempt(now: datetime) -> Callable[..., Any]:
    """Open an attempt of a run on `world_size` ranks, `per_node` to a node (`trn001`, …): gives its row."""
    from apps.fleet.services import nodes_ensure
    from apps.runs.selectors import attempt_by_id
    from apps.runs.services import RankPlace, attempt_open, placement_merge

    def make(run: Any, *, key: str = "slurm:1.0.0", world_size: int = 8, per_node: int = 4, **more: Any) -> Any:
        row, _ = attempt_open(
            run_id=run.id, key=key, world_size=world_size, by="test", source="API", **{"now": now, **more}
        )
        names = [f"trn{place + 1:03d}" for place in range(-(-world_size // per_node))]
        nodes = nodes_ensure(cluster_id=run.cluster_id, names=names, now=now)
        places = [
            RankPlace(rank=rank, node_id=nodes[names[rank // per_node]], local_rank=rank % per_node)
            for rank in range(world_size)
        ]
        placement_merge(attempt_id=row.id, places=places)
        return attempt_by_id(row.id)

    return make


@pytest.fixture
def attempt(run: Any, make_attempt: Callable[..., Any]) -> Any:
    """An open attempt of `run`: 8 ranks on trn001 and trn002."""
    return make_attempt(run)


@pytest.fixture
def make_user(db: None) -> Callable[[str], Any]:
    """Make a person with a role; their password is `a long password`."""
    from apps.accounts.models import User

    def make(role: str, name: str | None = None) -> Any:
        return User.objects.create_user(name or role.lower(), password="a long password", role=role)

    return make


@pytest.fixture
def operator(make_user: Callable[[str], Any]) -> Any:
    return make_user("OPERATOR")


@pytest.fixture
def viewer(make_user: Callable[[str], Any]) -> Any:
    return make_user("VIEWER")


@pytest.fixture
def admin(make_user: Callable[[str], Any]) -> Any:
    return make_user("ADMIN")


@pytest.fixture
def client_as() -> Callable[[Any], Client]:
    """A browser's session of a person: `client_as(operator).get("/runs")`."""

    def make(user: Any) -> Client:
        client = Client()
        client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return client

    return make


@pytest.fixture
def make_token(db: None, now: datetime) -> Callable[..., str]:
    """Make a bearer token: `make_token("report", cluster_id=1)` gives its secret."""
    from apps.accounts.services import token_create

    def make(*scopes: str, cluster_id: int | None = None, name: str = "test") -> str:
        return token_create(name=name, scopes=scopes, cluster_id=cluster_id, by="test", source="API", now=now)[1]

    return make


@pytest.fixture
def api(make_token: Callable[..., str]) -> Callable[..., Client]:
    """A REST caller with scopes: `api("read", "operate").post("/api/v1/actions", {...})` sends JSON."""

    def make(*scopes: str, cluster_id: int | None = None) -> Client:
        return JSONClient(headers={"Authorization": f"Bearer {make_token(*scopes, cluster_id=cluster_id)}"})

    return make


class JSONClient(Client):
    """A test client whose bodies are JSON."""

    def generic(self, method: str, path: str, data: Any = "", content_type: str = "", **extra: Any) -> Any:
        return super().generic(method, path, data, content_type or "application/json", **extra)

    def post(self, path: str, data: Any = None, content_type: str = "application/json", **extra: Any) -> Any:
        return super().post(path, {} if data is None else data, content_type=content_type, **extra)

    def put(self, path: str, data: Any = None, content_type: str = "application/json", **extra: Any) -> Any:
        return super().put(path, {} if data is None else data, content_type=content_type, **extra)


@pytest.fixture
def live_site(transactional_db: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Paceline itself, served by uvicorn over the test's database: `live_site.url`; `live_site.workers()` adds Celery."""
    from tests.site import LiveSite

    site = LiveSite(tmp_path_factory.mktemp("site"))
    try:
        site.start()
        yield site
    finally:
        site.stop()
