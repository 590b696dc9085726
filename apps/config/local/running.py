"""What `python -m apps.config.local` does. It needs no Django of its own: its children do."""

import os
from contextlib import ExitStack
from pathlib import Path

from apps.config.local.folder import folder_claim, folder_open
from apps.config.local.installation import Installation
from apps.config.local.listener import DEFAULT_BIND, address_of, address_read, listen
from apps.config.local.problems import LocalProblem, problem_of_os_error
from apps.config.local.processes import REPOSITORY
from apps.config.local.supervisor import Supervisor
from apps.config.local.voice import Voice
from apps.config.local.watch import StopAsked, Watch, adopt_orphans


def run(voice: Voice, given: dict[str, str]) -> None:
    """Run until somebody asks to stop.

    Raises: LocalProblem, StopAsked.
    """
    root = Path(given.get("PACELINE_DATA_DIR") or REPOSITORY / "data").resolve()
    bind = given.get("PACELINE_BIND") or DEFAULT_BIND
    with ExitStack() as stack:
        watch = stack.enter_context(Watch().installed())
        stack.enter_context(folder_claim(root, address=f"http://{bind}"))
        folder = folder_open(root)
        listener = stack.enter_context(listen(address_read(bind)))
        adopt_orphans()
        voice.say("paceline", f"starts on {address_of(listener)} with the data in {root}.")
        supervisor = Supervisor(watch=watch, voice=voice, logs=folder.logs)
        try:
            Installation(folder=folder, listener=listener, supervisor=supervisor, voice=voice, given=given).run()
        except OSError as error:
            raise problem_of_os_error(error, root) from error


def main() -> int:
    """Run, and return the exit status: 0 after an orderly stop, 1 when it could not start."""
    voice = Voice()
    try:
        run(voice, dict(os.environ))
    except StopAsked:
        return 0
    except LocalProblem as problem:
        voice.block(problem.message)
        return 1
    return 0
