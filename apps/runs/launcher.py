"""How a run is started, as its settings say: which launcher, what it is given. Knows nothing of how launchers work."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from apps.common.errors import BadRequest
from apps.fleet.services import name_is_usable

KINDS = ("LOCAL", "SLURM", "WEBHOOK", "KUBERNETES")
STOP_GRACE_S = 30.0
"""Default between the request to stop and the kill: what a save at the last moment may take on a small run."""

KEPT = "(kept)"
"""Stands for a secret that is not shown; sent back it means: leave it as it is."""

MOST_GRACE_S = 3600.0
MOST_WORDS = 1000
MOST_BYTES = 65_536


LIMITS = {
    "nice": (0, 19),
    "memory_mib": (16, 2**31),
    "open_files": (16, 2**20),
    "core_mib": (0, 2**20),
    "output_mib": (1, 2**16),
}
"""What a local launcher may be told to bound, and from where to where: niceness, and for each process its data, open
files and core dump; for the launch what is kept on disk of each of its two outputs."""


@dataclass(frozen=True, slots=True)
class LauncherSetting:
    """The launcher of a run. `nodes` are those it may use, in the order of preference; empty = the program decides."""

    kind: str
    command: tuple[str, ...] = ()
    script: str = ""
    directory: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    stop_grace_s: float = STOP_GRACE_S
    url: str = ""
    zone: str = ""
    secret: str = field(default="", repr=False)
    limits: dict[str, int] = field(default_factory=dict)


def launcher_of(stored: Mapping[str, Any]) -> LauncherSetting | None:
    """Return the launcher that a run's settings hold, None where there is none.

    Raises:
        BadRequest: it is none that could be used; the sentence says why.
    """
    return _read(stored)[0] if stored else None


def launcher_usable(stored: Mapping[str, Any]) -> LauncherSetting | None:
    """Return the launcher that a run's settings hold, None where there is none that could be used."""
    try:
        return launcher_of(stored)
    except BadRequest:
        return None


def launcher_shown(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a launcher as people and programs see it: the secret of its signatures is only ever written."""
    return {name: KEPT if name == "secret" and value else value for name, value in stored.items()}


def launcher_checked(
    given: Mapping[str, Any], *, before: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return a launcher as it may be stored, and the names that were ignored; an empty one takes the launcher away.

    `before` is the one that it replaces: a secret that comes back as it was shown stays what it is there.

    Raises:
        BadRequest: a field cannot be used; the sentence names it.
    """
    if not given:
        return {}, []
    if given.get("secret") == KEPT:
        given = {**given, "secret": (before or {}).get("secret", "")}
    setting, ignored = _read(given)
    stored = {name: value for name, value in asdict(setting).items() if value not in ("", (), {})}
    return {**stored, **{name: list(stored[name]) for name in ("command", "nodes") if name in stored}}, ignored


def _read(given: Mapping[str, Any]) -> tuple[LauncherSetting, list[str]]:
    setting = LauncherSetting(
        kind=_kind(given.get("kind")),
        command=_texts(given, "command"),
        script=_text(given, "script"),
        directory=_text(given, "directory"),
        environment=_environment(given.get("environment")),
        nodes=_nodes(given),
        stop_grace_s=_grace(given.get("stop_grace_s")),
        url=_text(given, "url"),
        zone=_text(given, "zone"),
        secret=_text(given, "secret"),
        limits=_limits(given.get("limits")),
    )
    _check_needs(setting)
    return setting, [f"launcher.{name}"[:80] for name in sorted(set(given) - set(LauncherSetting.__slots__))]


def _check_needs(setting: LauncherSetting) -> None:
    if setting.kind == "LOCAL" and not setting.command:
        raise BadRequest("launcher.command: a local launcher needs the program and its arguments, as a list.")
    if setting.kind in ("LOCAL", "SLURM") and setting.directory and not setting.directory.startswith("/"):
        raise BadRequest("launcher.directory: must be a path from the root, such as /srv/train.")
    if setting.kind == "SLURM" and setting.script and not setting.script.startswith("#!"):
        raise BadRequest("launcher.script: must begin with #! and the path of an interpreter, as sbatch wants it.")
    if setting.kind != "LOCAL" and setting.limits:
        raise BadRequest("launcher.limits: only a local launcher has them; a scheduler has limits of its own.")
    if setting.kind == "WEBHOOK":
        parts = urlsplit(setting.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequest("launcher.url: a webhook needs an address that begins with http:// or https://.")
        if parts.username or parts.password or parts.fragment:
            raise BadRequest("launcher.url: must hold no user name, password or fragment.")
    if setting.zone:
        try:
            ZoneInfo(setting.zone)
        except (KeyError, ValueError, OSError) as error:
            raise BadRequest(f"launcher.zone: there is no time zone “{setting.zone[:40]}”.") from error


def _kind(value: Any) -> str:
    if value not in KINDS:
        raise BadRequest(f"launcher.kind: must be one of {', '.join(KINDS)}.")
    return str(value)


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MOST_BYTES or "\0" in value:
        raise BadRequest(f"launcher.{name}: must be text.")
    return value.strip() if name in ("url", "zone", "directory") else value


def _texts(given: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = given.get(name)
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or len(value) > MOST_WORDS:
        raise BadRequest(f"launcher.{name}: must be a list of texts; a command is never one line for a shell.")
    if any(not isinstance(word, str) or "\0" in word or len(word) > MOST_BYTES for word in value):
        raise BadRequest(f"launcher.{name}: must be a list of texts.")
    if name == "command" and value and not value[0].strip():
        raise BadRequest("launcher.command: the first text is the program and must not be empty.")
    return tuple(value)


def _nodes(given: Mapping[str, Any]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in _texts(given, "nodes")))
    for name in names:
        if not name_is_usable(name):
            raise BadRequest(f"launcher.nodes: “{name[:80]}” is not the name of a node.")
    return names


def _environment(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > MOST_WORDS:
        raise BadRequest("launcher.environment: must be an object of texts.")
    for name, text in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise BadRequest(f"launcher.environment: “{str(name)[:40]}” is not the name of a variable.")
        if not isinstance(text, str) or "\0" in text or len(text) > MOST_BYTES:
            raise BadRequest(f"launcher.environment.{name[:40]}: must be text.")
    return dict(value)


def _limits(value: Any) -> dict[str, int]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or set(value) - set(LIMITS):
        raise BadRequest(f"launcher.limits: must be an object of {', '.join(LIMITS)}.")
    for name, number in value.items():
        least, most = LIMITS[name]
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise BadRequest(f"launcher.limits.{name}: must be a whole number from {least} to {most:,}.")
    return dict(value)


def _grace(value: Any) -> float:
    if value is None:
        return STOP_GRACE_S
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_GRACE_S:
        raise BadRequest(f"launcher.stop_grace_s: must be from 0 to {MOST_GRACE_S:g} seconds.")
    return float(value)
