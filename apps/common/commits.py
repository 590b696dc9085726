"""What happens once a transaction is committed, and only then."""

from collections.abc import Callable, Hashable

from django.db import transaction


def on_commit_once(key: Hashable, do: Callable[[], None]) -> None:
    """Do something once the present transaction is committed; what has the same key in it is done once.

    What it raises is logged: the transaction is kept already, and its caller must not be told otherwise.
    """
    connection = transaction.get_connection()
    if connection.in_atomic_block and any(getattr(entry[1], "key", None) == key for entry in connection.run_on_commit):
        return

    def run() -> None:
        do()

    run.key = key  # type: ignore[attr-defined]
    transaction.on_commit(run, robust=True)
