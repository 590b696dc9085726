"""From a GPU's index, all that many launchers tell a rank, to its identity; asked once a node, in a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace

from paceline.members import Identity


class GpuNames:
    """What nvidia-smi calls the GPUs of this node; empty until it has answered, for ever where there is none."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._names: dict[str, str] = {}
        self._wake = wake
        self._news = False
        # nvidia-smi may wait for a sick driver as long as it likes; nobody waits for this thread.
        threading.Thread(target=self._ask, name="paceline-gpus", daemon=True).start()

    def named(self, identity: Identity) -> Identity:
        """Return the identity with its GPU's name, if that is known."""
        if identity.gpu is not None or identity.gpu_index not in self._names:
            return identity
        return replace(identity, gpu=self._names[identity.gpu_index])

    def news(self) -> bool:
        """Return True once, when the names have come."""
        news, self._news = self._news, False
        return news

    def _ask(self) -> None:
        folders = os.environ.get("PATH", "").split(os.pathsep)
        if not any(os.access(os.path.join(folder, "nvidia-smi"), os.X_OK) for folder in folders):
            return
        from paceline.gpus import NvidiaSmi, gpus_by_index  # csv and subprocess are loaded only where they are needed

        self._names = gpus_by_index(NvidiaSmi())
        if self._names:
            self._news = True
            self._wake()
