"""`python -m paceline check`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from paceline.version import VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m paceline")
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="prove from this machine that reports arrive")
    checking.add_argument("--run", default=None, help="the run to ask for (default: PACELINE_RUN)")
    given = parser.parse_args(arguments)
    return _check(given.run)


def _check(run: str | None) -> int:
    from paceline.check import Finding, check

    def say(finding: Finding) -> None:
        print(f"{'ok    ' if finding.ok else 'FAILED'} {finding.subject}: {finding.sentence}", flush=True)

    arrived = check(os.environ, run=run, say=say)
    print("reports arrive" if arrived else "reports do not arrive", flush=True)
    return 0 if arrived else 1


if __name__ == "__main__":
    sys.exit(main())
