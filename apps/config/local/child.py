"""Become a child that dies with its parent, then another program.

Run as a script, standard library only, by an interpreter without site packages: a `preexec_fn` would run between fork
and exec of a process that may have threads. Arguments: the parent's pid, the signal to get when it dies, how to change
identity (`same`, `namespace`, `UID:GID`, or `UID:GID:reach`), and the program.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal a process gets when the thread that made it ends."""

CLONE_NEWUSER = 0x10000000
"""unshare(2): a user namespace of one's own."""

PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP = 28, 1 << 2
"""prctl(2): keep capabilities through a change of user, and let access(2), with which programs ask, see them too."""

PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
"""prctl(2): hand a capability on through an exec."""

CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE = 1
"""capabilities(7): open what the file modes alone would not allow."""

INNER_ID = 1000
"""What root is called inside the namespace; any number but 0 does for PostgreSQL."""


def enter_namespace() -> None:
    """Become user 1000 of a fresh user namespace that maps back to the present user outside."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{INNER_ID} {uid} 1"),
        ("gid_map", f"{INNER_ID} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def keep_reach() -> None:
    """Keep, of all that root may, only the right to open files, also in the program that follows."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    bit = 1 << CAP_DAC_OVERRIDE
    effective_permitted_inheritable = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    if libc.capset(header, effective_permitted_inheritable) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    if libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def take_identity(identity: str) -> None:
    """Change to `identity`, as the module's description names them."""
    if identity == "namespace":
        enter_namespace()
    elif identity != "same":
        uid, gid, *reach = identity.split(":")
        if reach:
            ctypes.CDLL(None).prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
        if reach:
            keep_reach()


def die_with_parent(parent_pid: int, signal_number: int) -> None:
    """Ask for a signal at the parent's death; leave at once if it has died already.

    Comes after the change of identity: the kernel forgets the request when credentials change.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal_number) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent_pid:
        raise SystemExit(0)


def main(arguments: list[str]) -> None:
    """Do what the arguments ask for; never returns on success."""
    parent_pid, signal_number, identity, *command = arguments
    take_identity(identity)
    die_with_parent(int(parent_pid), int(signal_number))
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # this interpreter, or a shell's `&`, has them ignored
    os.execvp(command[0], command)  # noqa: S606 - a program from an argument list is this module's purpose


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"{sys.argv[4:5]}: {error}\n")
        raise SystemExit(126) from None
