"""One installation from its first process to its last: the order in which things start and stop."""

import os
import socket
import sys
import time
from collections.abc import Mapping

from apps.config.local import outside, postgres, processes
from apps.config.local.folder import DataFolder, replace_file
from apps.config.local.launches import launches_alive, practice_alive
from apps.config.local.listener import address_of
from apps.config.local.problems import StepFailed, disk_full, last_words
from apps.config.local.programs import Program
from apps.config.local.servers import START_LIMIT_S, Servers, servers_choose
from apps.config.local.supervisor import STEP_S, Child, Supervisor, says_disk_full
from apps.config.local.voice import Voice

COMMAND_LIMIT_S = 600.0
"""A migration over much data may take minutes; nothing else that runs at a start does."""

WEB_LIMIT_S = 240.0
"""Importing everything takes seconds; on a machine that is busy or swaps, many."""

PRACTICE_STOP_S = 25.0
"""How long the practice run may take to end by an action: its own grace, and the way there."""

PRACTICE_GRACE_S = 15.0
"""How long it may take when only its wrapper is asked."""

LEFT_IN_ENV = ("DATABASE_URL", "REDIS_URL", "PACELINE_BIND", "PACELINE_PUBLIC_URL")
"""What a second terminal needs to know; settings.py reads it."""


class Installation:
    """Starts everything in order, says what happens, and takes everything down again."""

    def __init__(
        self,
        *,
        folder: DataFolder,
        listener: socket.socket,
        supervisor: Supervisor,
        voice: Voice,
        given: Mapping[str, str],
    ) -> None:
        self.folder, self.listener, self.supervisor, self.voice = folder, listener, supervisor, voice
        self.given = dict(given)
        self.web_processes = processes.web_processes(given)
        self.address = address_of(listener)
        self.environment: dict[str, str] = {}
        self.practising = False

    def run(self) -> None:
        """Start, serve until somebody asks to stop, stop.

        Raises: LocalProblem when something does not start; StopAsked when somebody stops it before it has started.
        """
        try:
            self.servers_up()
            self.voice.say("paceline", "brings the database up to date …")
            self.manage("migrate", "--noinput")
            self.voice.say("paceline", "starts web, workers and beat …")
            web = self.web_up()
            link = self.first_link()  # the web process loads meanwhile, on the other core
            self.supervisor.await_ready(web, limit_s=WEB_LIMIT_S)
            self.workers_up()
            self.welcome(link)
            self.practice_start()
            self.supervisor.serve()
        finally:
            self.down()

    def servers_up(self) -> None:
        """Start the private servers, or ask those that the environment names."""
        fresh = not self.folder.postgres.exists()
        servers = servers_choose(self.folder, environment=self.given, pause=self.supervisor.rest)
        self.outside_check(servers)
        for program in servers.programs:
            child = self.supervisor.add(program)
            self.supervisor.await_ready(child, limit_s=START_LIMIT_S[program.name])
            if program.name == "postgres":
                postgres.database_ensure(servers.database_url)
                self.voice.say("postgres", "is up, with a new database." if fresh else "is up, with last time's data.")
            else:
                self.voice.say(program.name, "is up.")
        self.environment = processes.site_environment(
            self.folder,
            database_url=servers.database_url,
            redis_url=servers.redis_url,
            address=self.address,
            given=self.given,
        )
        lines = "".join(f"{name}={self.environment[name]}\n" for name in LEFT_IN_ENV)
        replace_file(self.folder.environment, lines, mode=0o600)

    def outside_check(self, servers: Servers) -> None:
        """Make sure that servers which are not ours answer."""
        own = {program.name for program in servers.programs}
        if "postgres" not in own:
            outside.database_check(servers.database_url)
            self.voice.say("postgres", f"{outside.address_words(servers.database_url)} answers.")
        if "valkey" not in own:
            outside.broker_check(servers.redis_url)
            self.voice.say("valkey", f"{outside.address_words(servers.redis_url)} answers.")

    def first_link(self) -> str:
        """Return a link that signs the first operator in once. What the command printed is kept nowhere else."""
        program = self.command("first_operator")
        program.log.unlink(missing_ok=True)
        try:
            self.manage("first_operator")
            return last_words(program.log)
        finally:
            program.log.unlink(missing_ok=True)

    def command(self, *words: str) -> Program:
        """Return `manage.py WORDS` as a program."""
        return processes.command_program(self.folder, self.environment, *words)

    def manage(self, *words: str) -> None:
        """Run `manage.py WORDS` to its end.

        Raises: StepFailed, DiskFull, StopAsked.
        """
        program = self.command(*words)
        status = self.supervisor.run(program, limit_s=COMMAND_LIMIT_S)
        if status == 0:
            return
        if says_disk_full(program.log):
            raise disk_full(self.folder.root)
        how = "took too long" if status is None else f"ended with status {status}"
        said = last_words(program.log) or "none"
        raise StepFailed(f"`manage.py {words[0]}` {how}. Its last words: {said} (whole log: {program.log}).")

    def web_up(self) -> Child:
        """Start the web processes and return the first."""
        webs = [
            self.supervisor.add(
                processes.web_program(self.folder, self.environment, self.listener, self.address, number=number)
            )
            for number in range(1, 1 + self.web_processes)
        ]
        return webs[0]

    def workers_up(self) -> None:
        """Start the workers and the clock: after the first page, for which a person waits."""
        for kind in processes.WORKERS:
            self.supervisor.add(processes.worker_program(self.folder, self.environment, kind))
        self.supervisor.add(processes.beat_program(self.folder, self.environment))

    def welcome(self, link: str) -> None:
        """Say where to go, and open it on a desktop."""
        self.voice.block(
            f"Paceline is ready:  {link}",
            "",
            "The link signs you in once. `make run` prints a new one each time it starts;",
            f"after that it is {self.environment['PACELINE_PUBLIC_URL']}",
            f"Data and logs: {self.folder.root}      Stop: Ctrl-C",
        )
        desktop = self.given.get("DISPLAY") or self.given.get("WAYLAND_DISPLAY")
        if desktop and sys.stdout.isatty() and self.given.get("PACELINE_OPEN", "1") != "0":
            os.environ.setdefault("BROWSER", "xdg-open")
            browser = processes.module_program(self.folder, self.environment, "webbrowser", "-t", link)
            self.supervisor.begin(browser, lambda _status: None)

    def practice_start(self) -> None:
        """Start the practice run, unless the environment says no; it takes a moment and nobody waits for it."""
        if self.given.get("PACELINE_PRACTICE", "1") == "0":
            return
        self.practising = True
        program = self.command("practice", "--start")
        self.supervisor.begin(program, lambda status: self.practice_told(program, status))

    def practice_told(self, program: Program, status: int) -> None:
        """Say how the start of the practice run went."""
        if status == 0:
            self.voice.say("practice", "a training run of real processes has started: look at the first page.")
        else:
            self.voice.say("practice", f"could not be started: {last_words(program.log)}")

    def down(self) -> None:
        """Stop the practice run through its launcher, then everything of ours; say which runs go on."""
        if not self.supervisor.children:
            return
        self.voice.say("paceline", "stops …")
        try:
            if self.practising or practice_alive(self.folder.root):  # a page or a command may have started it as well
                self.practice_stop()
            self.folder.environment.unlink(missing_ok=True)
        finally:  # whatever a full disk or a lost folder refuses, no process of ours stays
            self.supervisor.stop()
        for launch in launches_alive(self.folder.root):
            self.voice.say("run", f"goes on: pid {launch.pid}, {launch.command[:120]}")
        self.voice.say("paceline", "has stopped; the data stays.")

    def practice_stop(self) -> None:
        """Stop the practice run by an action, like any run; where that cannot be done now, through its wrapper alone."""
        program = self.command("practice", "--stop")
        if self.supervisor.run(program, limit_s=PRACTICE_STOP_S, stopping=True) == 0:
            return
        self.voice.say("practice", f"is stopped directly: {last_words(program.log)}")
        deadline_s = time.monotonic() + PRACTICE_GRACE_S
        for launch in practice_alive(self.folder.root):
            launch.stop()
        while practice_alive(self.folder.root) and time.monotonic() < deadline_s:
            self.supervisor.watch.sleep(STEP_S)
