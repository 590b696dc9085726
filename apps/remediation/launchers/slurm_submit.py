"""Submitting a job so that it can never run twice.

A job is handed in held, with the order's mark as its comment and the order's code in its name. Only a job that is the
one with that mark is released. A submission whose answer was lost, or that arrives late, leaves a held job behind,
which the next try cancels before it hands in another.
"""

import re
import shlex
from datetime import timedelta

from django.conf import settings

from apps.engine.readers.slurm import SlurmJob, hostlist_compress
from apps.remediation.launchers.local import environment_of
from apps.remediation.launchers.slurm_cli import ENDED_ALREADY, SlurmCli
from apps.remediation.launchers.slurm_jobs import external_id_of, found_again, names_spelled, queue_words, receipt_of
from apps.remediation.launching import LaunchRefused, LaunchUncertain, ReadBack, Receipt
from apps.remediation.selectors.rows import OrderInHand

LOOKED_BACK = timedelta(days=1)
"""Clocks differ, and an order is handed out some time before it is read back."""

OF_THIS_MACHINE = ("TMPDIR", "XDG_RUNTIME_DIR")
"""What is passed on to a program of this machine and means nothing on a node."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = re.compile(
    r"--(array|comment|exclude|export|export-file|get-user-env|hold|job-name|parsable|test-only|uid|gid|wait|wrap)(=|$)"
    r"|-[aHJWxI]"
)
"""Options that decide whether a job can be found again and runs once; they are Paceline's to set."""
_DIRECTIVE = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)


def submit(cli: SlurmCli, order: OrderInHand) -> Receipt:
    """Submit an order's job, or find the one that was submitted for it.

    Raises: LaunchRefused, LaunchUnavailable, LaunchUncertain.
    """
    options, script = batch_of(order)
    environment = _environment(order)
    ours = _marked(cli, order)
    if begun := next((job for job in ours if _has_begun(job)), None):
        return found_again(begun, queue_words(begun), order.exclude_known)
    for job in ours:
        _withdraw(cli, job)
    spelled, unknown = names_spelled(cli.node_names(), order.exclude_known) if order.exclude_known else ([], [])
    words = [
        *options,
        "--parsable",
        "--hold",
        f"--job-name={job_name(order)}",
        f"--comment={order.mark}",
        "--export=ALL",
        *([f"--exclude={hostlist_compress(spelled)}"] if spelled else []),
        *([f"--chdir={order.setting.directory}"] if order.setting.directory else []),
    ]
    said = cli.change("sbatch", *words, stdin=script, environment=environment)
    number = said.text.strip().partition(";")[0]
    if not number.isdecimal():
        raise LaunchUncertain(f"sbatch did not say which job it made: {said.text.strip()[:100]}")
    return _released(cli, int(number), spelled, unknown)


def read_back(cli: SlurmCli, order: OrderInHand) -> ReadBack:
    """Say whether an order's job was released; one that is held, or not there, never runs by itself."""
    ours = _marked(cli, order)
    if begun := next((job for job in ours if _has_begun(job)), None):
        return ReadBack(True, found_again(begun, queue_words(begun), order.exclude_known))
    if job_id := cli.accounted_named(job_name(order), since=order.claimed_at - LOOKED_BACK):
        # As what it is known is what the watcher needs to take its end from the accounting.
        named = {"receipt": str(job_id), "key": f"slurm:{job_id}.0", "external_id": external_id_of(job_id)}
        return ReadBack(True, Receipt(f"job {job_id} has run", {**named, "job_name": job_name(order)}))
    return ReadBack(False, Receipt("it was not released, so that it cannot run" if ours else "Slurm has no such job"))


def job_name(order: OrderInHand) -> str:
    """Return the name under which an order's job is looked for."""
    return f"{order.run}.{order.code}"


def batch_of(order: OrderInHand) -> tuple[list[str], str]:
    """Return the options and the script of an order's job. Words of a command that begin with `-` are sbatch's own.

    Raises:
        LaunchRefused: the settings would break what Paceline relies on.
    """
    setting = order.setting
    program = next((place for place, word in enumerate(setting.command) if not word.startswith("-")), None)
    options = list(setting.command[:program])
    if setting.script:
        options, script = list(setting.command), setting.script
        given = [word for line in _DIRECTIVE.findall(script) for word in line.split()]
        if program is not None:
            raise LaunchRefused("launcher.command: beside a script it may hold options of sbatch only")
        if not any(word.startswith(("--requeue", "--no-requeue")) for word in [*given, *options]):
            # A requeued script would be told the same step again, long after it has gone further.
            options.append("--no-requeue")
        _check([word for word in given if not word.startswith(("--job-name", "--comment", "-J"))])
    elif program is None:
        raise LaunchRefused("launcher.command: names no program")
    else:
        script = _script(setting.command[program:])
    _check(options)
    return options, script


def _script(command: tuple[str, ...]) -> str:
    """Return the batch script of a command. A start that Slurm makes by itself is not told an old step again."""
    return "\n".join(
        [
            "#!/bin/sh",
            'export PACELINE_ATTEMPT_KEY="slurm:${SLURM_JOB_ID}.${SLURM_RESTART_COUNT:-0}"',
            'if [ "${SLURM_RESTART_COUNT:-0}" != 0 ]; then unset PACELINE_RESUME_STEP; fi',
            f"exec {shlex.join(command)}",
            "",
        ]
    )


def _check(words: list[str]) -> None:
    for word in words:
        if _OURS.match(word):
            raise LaunchRefused(f"the option “{word[:60]}” of sbatch is Paceline's own to set")


def _environment(order: OrderInHand) -> dict[str, str]:
    """Return the job's environment; it goes through sbatch's own, never onto a command line."""
    told = {name: value for name, value in environment_of(order).items() if name not in OF_THIS_MACHINE}
    told["PACELINE_URL"] = order.setting.environment.get("PACELINE_URL", settings.PUBLIC_URL)
    # The key holds the job's number, which nobody knows yet: the script, or the reporter itself, makes it.
    told.pop("PACELINE_ATTEMPT_KEY", None)
    for name in told:
        if not _VARIABLE.fullmatch(name):
            raise LaunchRefused(f"launcher.environment: “{name[:40]}” cannot be handed to a job")
    return told


def _marked(cli: SlurmCli, order: OrderInHand) -> list[SlurmJob]:
    return [job for job in cli.jobs_named(job_name(order)) if job.comment == order.mark]


def _has_begun(job: SlurmJob) -> bool:
    """Return whether a job was released; one that was cancelled while it was held never had a node."""
    if job.state == "PENDING":
        return not job.is_held
    return bool(job.nodes) or job.state != "CANCELLED"


def _withdraw(cli: SlurmCli, job: SlurmJob) -> None:
    if job.state == "CANCELLED":
        return
    cli.change("scancel", "--state=PENDING", str(job.id), already=ENDED_ALREADY)
    seen = cli.job(job.id)
    if seen is not None and not seen.is_over:
        raise LaunchUncertain(f"{queue_words(seen)}, though it was to be withdrawn")


def _released(cli: SlurmCli, job_id: int, spelled: list[str], unknown: list[str]) -> Receipt:
    try:
        cli.change("scontrol", "release", str(job_id))
    except LaunchRefused:
        cli.change("scancel", "--state=PENDING", str(job_id), already=ENDED_ALREADY)
        cli.has_changed = False  # it is taken back: nothing of it runs
        raise
    seen = cli.job(job_id)
    if seen is None or seen.is_held:
        raise LaunchUncertain(f"job {job_id} was released, but is not seen to be")
    aside = f"; Slurm does not know {', '.join(unknown)}" if unknown else ""
    return receipt_of(seen, queue_words(seen) + aside, excluded=spelled)
