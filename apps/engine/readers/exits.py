"""How a process ended, in words: what its status or its signal says to people."""

import signal as signals

MEANINGS = {
    signals.SIGABRT: "it gave up by itself",
    signals.SIGBUS: "memory, or a file behind it, was not there",
    signals.SIGFPE: "a calculation that cannot be done",
    signals.SIGILL: "an instruction that this processor does not have",
    signals.SIGSEGV: "it touched memory that is not its own",
    signals.SIGXCPU: "its time limit was over",
    signals.SIGXFSZ: "a file grew past its limit",
}
"""What signals mean that a program gets for what it did. Source: signal(7)."""

SHELL_SIGNAL = 128
"""A shell's status of a command that a signal ended is 128 and the signal's number. Source: POSIX shell, 2.8.2."""

SHELL_WORDS = {126: "the command could not be executed", 127: "the command was not found"}
"""Source: POSIX shell, 2.8.2."""


SIGNALS = 64
"""The highest number a signal has. Source: signal(7), SIGRTMAX."""

MOST_CODE = 2**31 - 1
"""A status takes four bytes where it takes the most."""


def signal_usable(number: int | None) -> bool:
    """Return whether a signal has this number; none is none.

    >>> [signal_usable(number) for number in (9, 64, 0, -9, 200, None)]
    [True, True, False, False, False, False]
    """
    return number is not None and 1 <= number <= SIGNALS


def code_usable(code: int | None) -> bool:
    """Return whether a process can end with this status, negative where a signal ended it.

    >>> [code_usable(code) for code in (0, 137, -9, -99, 2**31, None)]
    [True, True, True, False, False, False]
    """
    return code is not None and -SIGNALS <= code <= MOST_CODE


def exit_words(status: int | None, signal: int | None) -> str:
    """Return how a process ended, for a sentence that begins with its name; "" where neither is known.

    status: its exit status, negative where a signal ended it, as Python says it. signal: what ended it, None for nothing.
    Cost: O(1). Source: signal(7), POSIX shell; the words are ours.

    >>> exit_words(None, 9), exit_words(-11, None)
    ('was killed by SIGKILL', 'was killed by SIGSEGV: it touched memory that is not its own')
    >>> exit_words(1, None), exit_words(137, None)
    ('ended with status 1', 'ended with status 137, as shells say after SIGKILL')
    >>> exit_words(0, None), exit_words(127, None), exit_words(None, None)
    ('ended with status 0', 'ended with status 127: the command was not found', '')
    """
    number = signal if signal else -status if status is not None and status < 0 else None
    if number is not None:
        meaning = MEANINGS.get(number, "")  # type: ignore[call-overload]
        return f"was killed by {signal_name(number)}" + (f": {meaning}" if meaning else "")
    if status is None:
        return ""
    words = f"ended with status {status}"
    if status in SHELL_WORDS:
        return f"{words}: {SHELL_WORDS[status]}"
    named = signal_name(status - SHELL_SIGNAL) if SHELL_SIGNAL < status < SHELL_SIGNAL + signals.NSIG else ""
    return f"{words}, as shells say after {named}" if named.startswith("SIG") else words


def signal_name(number: int) -> str:
    """Return a signal's name, or its number where it has none.

    >>> signal_name(15), signal_name(40)
    ('SIGTERM', 'signal 40')
    """
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
