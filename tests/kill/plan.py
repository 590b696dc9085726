"""Which seed kills what, when: every way an action goes, every stage of it, every process that can die."""

import random
from dataclasses import dataclass
from itertools import product

LOCAL, WEBHOOK, SLURM, LEDGER = "LOCAL", "WEBHOOK", "SLURM", "LEDGER"

ASKED = "asked"
"""Inside the request's own transaction: nobody has an answer yet."""

BEFORE_CLAIM = "before claim"
IN_CLAIM = "in claim"
"""Inside the transaction that takes the order in hand."""

AFTER_CLAIM = "after claim"
"""The order is in a worker's hands, and nothing has happened outside yet."""

AFTER_CALL = "after call"
"""It has happened outside, and nothing of that is written down yet."""

BEFORE_READ_BACK = "before read-back"
AFTER_SETTLE = "after settle"
"""The order is done; the program has not reported yet."""

STAGES: dict[tuple[str, str], tuple[str, ...]] = {
    (LOCAL, "start"): (ASKED, BEFORE_CLAIM, IN_CLAIM, AFTER_CLAIM, AFTER_CALL, AFTER_SETTLE),
    (LOCAL, "restart"): (ASKED, BEFORE_CLAIM, IN_CLAIM, AFTER_CLAIM, AFTER_CALL, BEFORE_READ_BACK, AFTER_SETTLE),
    (LOCAL, "stop"): (BEFORE_CLAIM, IN_CLAIM, BEFORE_READ_BACK),
    (LOCAL, "cancel"): (BEFORE_CLAIM, IN_CLAIM),
    (WEBHOOK, "start"): (BEFORE_CLAIM, IN_CLAIM, AFTER_CLAIM, AFTER_CALL, BEFORE_READ_BACK, AFTER_SETTLE),
    (WEBHOOK, "restart"): (BEFORE_CLAIM, IN_CLAIM, AFTER_CLAIM, AFTER_CALL, BEFORE_READ_BACK, AFTER_SETTLE),
    (WEBHOOK, "stop"): (BEFORE_CLAIM, AFTER_CLAIM, AFTER_CALL, BEFORE_READ_BACK),
    (WEBHOOK, "cancel"): (BEFORE_CLAIM, IN_CLAIM),
    (LEDGER, "exclude"): (ASKED,),
    (SLURM, "start"): (BEFORE_CLAIM, IN_CLAIM, AFTER_CLAIM, AFTER_CALL, AFTER_SETTLE),
    (SLURM, "restart"): (BEFORE_CLAIM, IN_CLAIM, AFTER_CLAIM, AFTER_CALL, BEFORE_READ_BACK, AFTER_SETTLE),
    (SLURM, "requeue"): (BEFORE_CLAIM, IN_CLAIM, AFTER_CLAIM, AFTER_CALL, BEFORE_READ_BACK, AFTER_SETTLE),
    (SLURM, "stop"): (BEFORE_CLAIM, AFTER_CLAIM, BEFORE_READ_BACK),
    (SLURM, "cancel"): (BEFORE_CLAIM, IN_CLAIM),
}

RESTARTS = ("restart", "requeue")
"""What stops something and starts it again; `requeue` is about a job that somebody else submitted."""

VICTIMS = ("orders", "postgres", "valkey", "web", "launcher", "supervisor", "beat", "watch", "fold", "slow")
"""`launcher` is the scheduler's or the launcher's own process: a local program's wrapper, the receiver, slurmctld."""


@dataclass(frozen=True)
class Case:
    """What one seed does."""

    seed: int
    launcher: str
    wish: str
    stage: str
    victim: str
    again: str
    """A second process that dies shortly after the first, or nothing."""
    pause_s: float
    """Between the stage being reached and the kill."""

    @property
    def slug(self) -> str:
        return f"kill-{self.seed:05d}"

    @property
    def words(self) -> str:
        return f"{self.launcher.lower()} {self.wish}, {self.stage}: kills {self.victim}" + (
            f" and {self.again}" if self.again else ""
        )


def case_of(seed: int, *, launchers: tuple[str, ...] = (LOCAL, WEBHOOK, LEDGER)) -> Case:
    """Return what a seed does; neighbouring seeds kill different processes, and all combinations come up in turn."""
    ways = [(way, stage) for way, stages in STAGES.items() if way[0] in launchers for stage in stages]
    pairs = list(product(ways, VICTIMS))
    lap, place = divmod(seed, len(pairs))
    # One deck per victim, dealt in turn: whoever was just killed has time to come back for good.
    victim = VICTIMS[place % len(VICTIMS)]
    deck = random.Random(f"{lap}-{victim}").sample(ways, len(ways))
    (launcher, wish), stage = deck[place // len(VICTIMS)]
    dice = random.Random(f"kill-{seed}")
    again = dice.choice(VICTIMS) if dice.random() < 0.25 else ""
    return Case(
        seed=seed,
        launcher=launcher,
        wish=wish,
        stage=stage,
        victim=victim,
        again=again if again != victim else "",
        pause_s=dice.choice((0.0, 0.0, 0.01, 0.1)),
    )
