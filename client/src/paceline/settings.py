"""What the surroundings say: who this process is, where reports go, and under which key its attempt stands."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from paceline.digest import fresh_name, name_of

INTERVAL_S = 2.0
"""A report each two seconds: beats stay fresh enough for a hang to be seen, and a node costs half a request a second."""
SPOOL_MAX_MIB = 256
"""About three days of one node's reports; little beside a node's local disk."""
STACK_AFTER_S = 60.0
"""Longer than any healthy steady phase, an order of magnitude below NCCL's own time-out of 600 s."""
NOT_A_KEY = ("", "none")
"""torchrun's default run id is the word `none`: the same for every job in the world."""


@dataclass(frozen=True)
class Settings:
    """Everything a process of the client knows about its place; read once, never changed."""

    url: str
    token: str
    run: str
    node: str
    cluster: str | None
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    base_key: str
    external_id: str | None
    torchrun: bool
    launch: str
    gpu: str | None
    gpu_index: str
    resume_step: int | None
    interval_s: float
    stack_after_s: float
    held_stacks: bool
    spool_dir: str
    spool_max_bytes: int
    local_dir: str
    shared_dir: str | None
    check: bool = False
    """Whether the server is only asked if it would take the reports."""


@dataclass(frozen=True)
class Refusal:
    """Why this process will not report: one clear sentence for people, or nothing when reporting was not asked for."""

    sentence: str | None


def settings_read(
    environ: Mapping[str, str],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    run: str | None = None,
) -> Settings | Refusal:
    """Return the settings found in `environ` (arguments win), or why there are none."""
    url = environ.get("PACELINE_URL", "").strip().rstrip("/")
    if not url:
        return Refusal(None)
    if fault := url_fault(url):
        return Refusal(f"{fault}: nothing is reported")
    run = run or environ.get("PACELINE_RUN", "").strip()
    if not run:
        return Refusal("PACELINE_RUN is not set: nothing is reported. Give the run's name there or to start(run=...).")
    node = node_name(environ)
    found = _place(environ)
    rank = found[0] if rank is None else rank
    world_size = max(found[1] if world_size is None else world_size, 1)
    local_rank = found[2] if local_rank is None else local_rank
    base = base_key(environ, world_size=world_size, node=node)
    if base is None:
        return Refusal(key_wanted(environ, run=run))
    device = _device(environ, local_rank)
    return Settings(
        url=url,
        token=environ.get("PACELINE_TOKEN", "").strip(),
        run=run,
        node=node,
        cluster=environ.get("PACELINE_CLUSTER") or None,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=_whole(environ.get("LOCAL_WORLD_SIZE")) or 1,
        base_key=base,
        external_id=external_id(environ, base),
        torchrun=is_torchrun(environ),
        launch=_launch(environ, base),
        gpu=environ.get("PACELINE_GPU") or (device if device.startswith(("GPU-", "MIG-")) else None),
        gpu_index=device,
        resume_step=_whole(environ.get("PACELINE_RESUME_STEP")),
        interval_s=_positive(environ.get("PACELINE_INTERVAL_S"), INTERVAL_S),
        stack_after_s=_positive(environ.get("PACELINE_STACK_AFTER_S"), STACK_AFTER_S),
        held_stacks=environ.get("PACELINE_HELD_STACKS", "") not in ("", "0"),
        spool_dir=spool_dir(environ),
        spool_max_bytes=spool_max_bytes(environ),
        local_dir=environ.get("PACELINE_LOCAL_DIR") or own_dir("local"),
        shared_dir=environ.get("PACELINE_SHARED_DIR") or None,
    )


def url_fault(url: str) -> str | None:
    """Return what is wrong with the server's address, or None."""
    said = f"PACELINE_URL is {url[:200]!r}, which is no address such as http://paceline.example:8000"
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        host, _ = parts.hostname, parts.port
    except ValueError:
        return said
    if parts.scheme not in ("http", "https") or not host or url.endswith(":") or " " in url or not url.isprintable():
        return said
    return None


def node_name(environ: Mapping[str, str]) -> str:
    """Return this machine's name as the site's scheduler says it, else the short host name."""
    return environ.get("PACELINE_NODE") or environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]


def is_torchrun(environ: Mapping[str, str]) -> bool:
    return "TORCHELASTIC_RUN_ID" in environ


def base_key(environ: Mapping[str, str], *, world_size: int, node: str) -> str | None:
    """Return the attempt key that every rank of a launch finds by itself, or None where it must be given."""
    given = environ.get("PACELINE_ATTEMPT_KEY", "").strip()
    if given.lower() not in NOT_A_KEY:
        return given
    job = environ.get("SLURM_JOB_ID")
    alone = world_size == 1 and not is_torchrun(environ)
    if job:
        step = environ.get("SLURM_STEP_ID")
        key = f"slurm:{job}.{environ.get('SLURM_RESTART_COUNT') or 0}.{step or 'batch'}"
        # A script may start python many times in one allocation; without a step id only a fresh one tells them apart.
        return f"{key}/{fresh_name()}" if alone and not step else key
    run_id = environ.get("TORCHELASTIC_RUN_ID", "").strip()
    if run_id.lower() not in NOT_A_KEY:
        return f"torchrun:{run_id}"
    return f"plain:{node}/{fresh_name()}" if alone else None


def key_wanted(environ: Mapping[str, str], *, run: str) -> str:
    """Return the sentence for a launch that says nowhere which one it is, with what to type."""
    typed = f'export PACELINE_ATTEMPT_KEY="{run}-$(date +%s)"'
    if is_torchrun(environ):
        why, instead = (
            "this torchrun has no id of its own",
            f"give it --rdzv-id={run}-1, or another new one at each launch; or ",
        )
    else:
        why, instead = "several ranks were started by neither torchrun nor Slurm", ""
    return (
        f"no attempt key: nothing is reported, because {why}. Before the ranks start, {instead}type `{typed}`: "
        "the same on all ranks, new at each launch."
    )


def key_words(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return which attempt key this process has and where it is from, for people."""
    base = settings.base_key.partition("/")[0]
    if environ.get("PACELINE_ATTEMPT_KEY", "").strip().lower() not in NOT_A_KEY:
        found = f"{base}, from PACELINE_ATTEMPT_KEY; it must be new at each launch"
    elif base.startswith("slurm:"):
        found = f"{base}, from Slurm"
    elif base.startswith("torchrun:"):
        found = f"{base}, from torchrun"
    else:
        typed = f'export PACELINE_ATTEMPT_KEY="{settings.run}-$(date +%s)"'
        return (
            "a process alone here: a new one at each start. torchrun and Slurm bring their own; "
            f"ranks that are started otherwise need `{typed}` before each launch"
        )
    return f"{found}; this is rank {settings.rank} of {settings.world_size}"


def external_id(environ: Mapping[str, str], base: str) -> str | None:
    """Return the job this launch belongs to: a later launch of the same job follows this one without waiting."""
    if environ.get("SLURM_JOB_ID"):
        return f"slurm:{environ['SLURM_JOB_ID']}"
    return base if is_torchrun(environ) else None


def own_dir(kind: str) -> str:
    """Return a folder of this user below the temporary one; a Unix socket's path must stay under 108 bytes."""
    root = os.environ.get("TMPDIR", "")
    return os.path.join(
        root if 0 < len(root) < 40 else "/tmp",  # noqa: S108  # the folder below is this user's alone
        f"paceline-{os.getuid()}",
        kind,
    )


def spool_dir(environ: Mapping[str, str]) -> str:
    return environ.get("PACELINE_SPOOL_DIR") or own_dir("spool")


def spool_folder(folder: str, url: str) -> str:
    """Return the part of a spool that belongs to one server."""
    return os.path.join(folder, name_of(url, length=8))


def spool_max_bytes(environ: Mapping[str, str]) -> int:
    return int(_positive(environ.get("PACELINE_SPOOL_MIB"), SPOOL_MAX_MIB) * 1024 * 1024)


def _place(environ: Mapping[str, str]) -> tuple[int, int, int]:
    """Return (rank, world size, local rank) as torchrun or a like launcher sets them, else Slurm's, else alone."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    elif "SLURM_STEP_ID" in environ and "SLURM_PROCID" in environ:
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    else:
        return 0, 1, 0
    rank, world_size, local_rank = (_whole(environ.get(name)) or 0 for name in names)
    return rank, world_size, local_rank


def _launch(environ: Mapping[str, str], base: str) -> str:
    """Return what is common to the ranks of this launch on this node, and to nobody else: it names their socket."""
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    return "\n".join([base, *(environ.get(name, "") for name in names)])


def _device(environ: Mapping[str, str], local_rank: int) -> str:
    """Return what the surroundings call this rank's GPU: its identity, or an index that only means something here."""
    visible = [part.strip() for part in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return visible[local_rank % len(visible)] if visible else str(local_rank)


def _whole(text: str | None) -> int | None:
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _positive(text: str | None, default: float) -> float:
    try:
        value = float(text) if text else default
    except ValueError:
        return default
    return value if 0 < value < 1e9 else default
