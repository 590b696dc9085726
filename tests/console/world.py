"""A fleet as in the drawings, made through the services that make one in real life: for screenshots and browser tests.

Nothing here is shipped; a page that looks right on it is drawn from rows that reports, detectors and people would leave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import orjson

from apps.engine.detection import (
    Cells,
    Certainty,
    Class,
    Coverage,
    Evidence,
    Level,
    Proposal,
    ProposalKind,
    Subject,
    SubjectKind,
    Verdict,
)

STEPS, FIRST, SLOW_AT, SAVED_AT, CULPRIT, SILENT = 240, 48_192, 144, 58, 16, 44
NAMES = [f"trn{number:03d}" for number in range(1, 75) if number not in (41, 58)]
MORE_NAMES = [f"trn{number:03d}" for number in range(75, 2200)]
"""For shapes larger than the drawings'."""


@dataclass(frozen=True)
class Shape:
    """How large the run is."""

    ranks: int = 512
    per_node: int = 8
    stages: int = 8

    @property
    def nodes(self) -> int:
        return self.ranks // self.per_node


@dataclass
class Seeded:
    """What was made."""

    run: Any
    attempt: Any
    incident: Any
    now: datetime


def measured(shape: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return compute and waiting seconds, float32 [rank, step], and seconds a step takes, float64 [step]: one node heats up."""
    rng = np.random.default_rng(17)
    node = np.arange(shape.ranks) // shape.per_node
    stage = node * shape.stages // shape.nodes
    culprit, silent = min(CULPRIT, shape.nodes - 1), min(SILENT, shape.nodes - 1)
    base = np.where(stage == 0, 6.92, 7.05) * (1 + 0.0035 * rng.standard_normal(shape.ranks))
    extra = np.zeros(STEPS)
    extra[SLOW_AT:] = 1.77
    extra[SLOW_AT : SLOW_AT + 3] *= (0.35, 0.7, 0.9)
    compute = base[:, None] * (1 + 0.005 * rng.standard_normal((shape.ranks, STEPS)))
    heat = 1 + np.where(np.arange(STEPS) >= SLOW_AT, extra / 7.05, np.maximum(0, np.arange(STEPS) - 128) * 0.0011)
    compute[node == culprit] = 7.05 * heat + 0.03 * rng.standard_normal((int((node == culprit).sum()), STEPS))
    for rank, column in ((31, 90), (66, 33), (97, 201), (301, 142), (455, 47)):
        if rank < shape.ranks:
            compute[rank, column] *= 1.25
    step = 9.42 + 0.025 * rng.standard_normal(STEPS) + extra
    step[SAVED_AT] += 12
    waits = np.maximum(0.4, step - np.where(np.arange(STEPS) == SAVED_AT, 12, 0) - compute - 0.39)
    if silent != culprit:
        compute[node == silent, 166:178] = waits[node == silent, 166:178] = np.nan
    return compute.astype("<f4"), waits.astype("<f4"), step


def thermal(shape: Shape) -> Verdict:
    """What the detector says of the node that throttles."""
    culprit = min(CULPRIT, shape.nodes - 1)
    name = NAMES[culprit]
    ranks = tuple(range(culprit * shape.per_node, (culprit + 1) * shape.per_node))
    return Verdict(
        cause="thermal_throttle",
        class_=Class.COMPUTE,
        level=Level.WARNING,
        certainty=Certainty.CONFIRMED,
        subject=Subject(SubjectKind.NODE, node=name),
        score=1.25,
        score_meaning="times its peers",
        verdict=f"{name} runs hot and holds {shape.ranks - shape.per_node} other GPUs back: every step takes 1.77 s longer.",
        why=f"Its {shape.per_node} ranks compute 8.82 s a step, their peers of the stage take 7.05 s. It waits least, 1.98 s "
        "against 3.75 s. All its GPUs report HW thermal slowdown (0x40): 88 °C, 1,455 of 1,980 MHz.",
        next=f"Save a checkpoint, then exclude {name} and restart on a spare.",
        coverage=Coverage(shape.per_node, shape.per_node),
        since_step=FIRST + SLOW_AT,
        found_step=FIRST + SLOW_AT + 10,
        evidence=(
            Evidence("compute", 8.82, "s", 7.05),
            Evidence("waits", 1.98, "s", 3.75),
            Evidence("arrived last", 0.97, "share", 0.0),
            Evidence("GPU temperature", 88, "°C", 65),
            Evidence("SM clock", 1455, "MHz", 1980),
        ),
        proposal=Proposal(ProposalKind.EXCLUDE_NODE, name),
        cells=(Cells("compute_s", ranks, tuple(range(FIRST + SLOW_AT, FIRST + SLOW_AT + 60))),),
        cost_s=1.77,
    )


def queued(now: datetime) -> Verdict:
    """What the detector says of checkpoints that wait in a queue."""
    return Verdict(
        cause="checkpoint_queue",
        class_=Class.RECOVERY,
        level=Level.WARNING,
        certainty=Certainty.CONFIRMED,
        subject=Subject(SubjectKind.RUN),
        score=0.89,
        score_meaning="share of the write spent in a queue",
        verdict="Checkpoint writes spend 89 % of their time in a queue.",
        why="132 of 148 s; training waits 12 s of it.",
        next="Look at the store's write queue; see the advice on intervals.",
        coverage=Coverage(6, 6),
        began_at=(now - timedelta(minutes=31)).timestamp(),
    )


class World:
    """Makes the fleet, step by step; `now` is the moment at which the reader looks."""

    def __init__(self, now: datetime, shape: Shape | None = None) -> None:
        self.now, self.shape = now, shape or Shape()
        self.compute, self.waits, self.step_s = measured(self.shape)
        ends = now.timestamp() - 2.0 - np.r_[np.cumsum(self.step_s[::-1])[::-1][1:], 0.0]
        self.ended = ends

    def at_step(self, column: int) -> datetime:
        return self.now - timedelta(seconds=self.now.timestamp() - float(self.ended[column]))

    def ago(self, **parts: float) -> datetime:
        return self.now - timedelta(**parts)

    def clusters(self) -> None:
        """North with nine racks, south with four."""
        from apps.fleet.services import cluster_ensure, node_place, nodes_ensure

        old = self.ago(days=40)
        self.north, self.south = cluster_ensure(name="north", now=old), cluster_ensure(name="south", now=old)
        self.names = [*NAMES, *MORE_NAMES[: max(0, self.shape.nodes - len(NAMES))]]
        self.nodes = nodes_ensure(cluster_id=self.north, names=self.names, now=old)
        others = [f"gpu{number:02d}" for number in range(1, 33)]
        self.others = nodes_ensure(cluster_id=self.south, names=others, now=old)
        for place, name in enumerate(self.names):
            node_place(node_id=self.nodes[name], rack=str(place // 8 + 1), rack_slot=str(place % 8 + 1), leaf="")
        for place, name in enumerate(others):
            node_place(node_id=self.others[name], rack=f"row {place // 8 + 1}", rack_slot=str(place % 8 + 1), leaf="")

    def run(self) -> None:
        """dense-70b in its seventh attempt, with its restarts and saves before."""
        from apps.runs.models import Attempt
        from apps.runs.selectors import attempt_by_id, run_by_id
        from apps.runs.services import RankPlace, attempt_end, attempt_open, placement_merge, run_put

        shape = self.shape
        fields = {
            "model": {
                "parameters": 70_000_000_000,
                "layers": 80,
                "heads": 64,
                "head_dim": 128,
                "sequence_length": 4096,
            },
            "layout": {"tp": 8, "pp": shape.stages, "dp": shape.nodes // shape.stages},
            "checkpoint": {"interval_steps": 250},
            "tokens_per_step": 4_194_304,
            "gpu_model": "H100",
            "dtype": "bf16",
            "gpus_per_node": shape.per_node,
            "steps_planned": 60_000,
            "mode": "PROPOSE",
            "limits": {"no_telemetry_s": 600.0},  # the shots take longer than a sender may be silent
        }
        self.run_id, _ = run_put(
            slug="dense-70b", cluster_id=self.north, fields=fields, by="researcher", source="API", now=self.ago(days=6)
        )
        for number in range(1, 8):
            started = self.ago(hours=7 + 20 * (7 - number))
            opened, _ = attempt_open(
                run_id=self.run_id, key=f"slurm:81{number:02d}.0.0", world_size=shape.ranks, by="researcher", source="API",
                resumed_from_step=[None, 9_000, 17_250, 25_000, 31_500, 39_000, 45_750][number - 1], now=started,
            )  # fmt: skip
            if number < 7:
                ended = self.ago(hours=7 + 20 * (7 - number - 1), minutes=8.7)
                attempt_end(
                    attempt_id=opened.id, reason="CRASHED", authority="SCHEDULER", by="slurm", source="API", now=ended
                )
        for row in Attempt.objects.filter(run_id=self.run_id):
            row.first_step_at = row.started_at + timedelta(seconds=8.0 + row.number)
            row.save()
        places = [
            RankPlace(
                rank=rank,
                node_id=self.nodes[self.names[rank // shape.per_node]],
                local_rank=rank % shape.per_node,
                coords={
                    "dp": rank // shape.per_node % (shape.nodes // shape.stages),
                    "pp": rank // shape.per_node * shape.stages // shape.nodes,
                    "tp": rank % shape.per_node,
                },
            )
            for rank in range(shape.ranks)
        ]
        placement_merge(attempt_id=opened.id, places=places)
        self.attempt = attempt_by_id(opened.id)
        self.run_row = run_by_id(self.run_id)

    def status(self) -> None:
        """What the fold and the detectors would have written of it."""
        from apps.runs.services import CheckpointFact, checkpoint_note, status_update

        status_update(
            run_id=self.run_id, step=FIRST + STEPS - 1, first_step=45_750, step_s=11.19, own_best_step_s=9.42,
            tokens_per_s=374_826.0, loss=1.843, last_report_at=self.ago(seconds=1), ranks_reporting=self.shape.ranks,
            slow=True, slow_since_at=self.at_step(SLOW_AT),
        )  # fmt: skip
        for back in range(6, -1, -1):
            start = self.at_step(SAVED_AT) - timedelta(minutes=39.4 * back)
            for state, seconds in (("STARTED", 0.0), ("SAVED", 148.0)):
                fact = CheckpointFact(
                    step=48_250 - 250 * back, state=state, happened_at=start + timedelta(seconds=seconds),
                    duration_s=148.0, queue_s=132.0, blocking_s=12.0, bytes=980_000_000_000,
                )  # fmt: skip
                checkpoint_note(
                    attempt_id=self.attempt.id, fact=fact, source="SENDER", actor_name="",
                    now=fact.happened_at,
                )  # fmt: skip

    def reports(self) -> list[dict[str, Any]]:
        """The reports that the senders of dense-70b would have posted: one a node, all steps."""
        import base64

        made = []
        for place in range(self.shape.nodes):
            ranks = list(range(place * self.shape.per_node, (place + 1) * self.shape.per_node))
            step = np.broadcast_to(self.step_s.astype("<f4"), (len(ranks), STEPS)).copy()
            step[np.isnan(self.compute[ranks])] = np.nan
            loss = np.broadcast_to((1.9 - 0.0002 * np.arange(STEPS)).astype("<f4"), (len(ranks), STEPS))
            cells = np.stack([step, self.compute[ranks], self.waits[ranks], loss]).astype("<f4")
            packed = np.where(np.isnan(cells), np.uint32(0x7FC00000), cells.view("<u4")).astype("<u4")
            made.append(
                {
                    "sender": self.names[place],
                    "boot": f"{place:032x}",
                    "seq": 1,
                    "sent_at": self.now.isoformat(),
                    "steps": {
                        "ranks": ranks,
                        "steps": list(range(FIRST, FIRST + STEPS)),
                        "ended_at": [self.at_step(column).isoformat() for column in range(STEPS)],
                        "names": ["step_s", "compute_s", "communication_s", "loss"],
                        "f32": base64.b64encode(packed.tobytes()).decode(),
                    },
                    "beats": [
                        {"rank": rank, "step": FIRST + STEPS - 1, "phase": "communication", "phase_age_s": 0.4}
                        for rank in ranks
                    ],
                }
            )
        return made

    def trouble(self) -> None:
        """The findings, their incident, and what people wrote."""
        from apps.diagnosis.services.findings import verdict_take
        from apps.incidents.selectors import incidents_of
        from apps.incidents.services import findings_absorb, incident_acknowledge, note_add, note_pin
        from apps.journal.services import recording

        verdict, began = thermal(self.shape), self.at_step(SLOW_AT)
        verdict = replace(verdict, began_at=began.timestamp())
        told = (
            (queued(self.now), self.ago(minutes=28)),
            (replace(verdict, certainty=Certainty.SUSPECTED), began + timedelta(seconds=67)),
            (verdict, began + timedelta(seconds=112)),
        )
        for said, at in told:
            with recording(now=at) as log:
                verdict_take(said, run_id=self.run_id, attempt_id=self.attempt.id, late=False, log=log, now=at)
            findings_absorb(now=at)
        self.incident = next(row for row in incidents_of(now=self.now) if row.cause == "thermal_throttle")
        taken = began + timedelta(minutes=4, seconds=35)
        incident_acknowledge(incident_id=self.incident.id, by="on-call, training", source="WEB", now=taken)
        notes = (
            ("operator, facilities", began - timedelta(minutes=6), began + timedelta(minutes=13),
             "Cooling unit 3 went to 60 % fan speed for a filter change, planned until 02:30. Inlet of rack 3 was 31 °C."),
            ("on-call, training", taken + timedelta(minutes=2), taken + timedelta(minutes=2),
             "All eight GPUs at once, so it is air and not one card. Asking facilities before we take the node out."),
            ("operator, facilities", began + timedelta(minutes=14), began + timedelta(minutes=14),
             "Fan is back at 100 %. The row needs about ten minutes to cool."),
        )  # fmt: skip
        for who, happened, written, text in notes:
            note = note_add(
                incident_id=self.incident.id, text=text, happened_at=happened, author_key=f"user:{who}",
                author_name=who, source="WEB", now=written,
            )  # fmt: skip
            if happened != written:
                note_pin(note_id=note, pinned=True, by=who, source="WEB", now=written)

    def blame(self, name: str) -> None:
        """A detector finds that one more node holds the run back."""
        from apps.diagnosis.services.findings import verdict_take
        from apps.journal.services import recording

        now = datetime.now(UTC)
        said = replace(thermal(self.shape), subject=Subject(SubjectKind.NODE, node=name), began_at=now.timestamp())
        with recording(now=now) as log:
            verdict_take(said, run_id=self.run_id, attempt_id=self.attempt.id, late=False, log=log, now=now)

    def node_events(self) -> None:
        """What the node's own sender said."""
        from apps.fleet.services import node_event
        from apps.journal.services import recording

        name = NAMES[min(CULPRIT, self.shape.nodes - 1)]
        for column, text in (
            (139, f"{name} GPU 3 passes 85 °C"),
            (145, f"{name} all 8 GPUs report HW thermal slowdown 0x40"),
        ):
            at = self.at_step(column)
            with recording(now=at) as log:
                node_event(
                    log, node_id=self.nodes[name], kind="node.gauge", text=text, source="SENDER", happened_at=at,
                    subject={"kind": "NODE", "node": name},
                )  # fmt: skip

    def ledger(self) -> None:
        """Exclusions of the past weeks, two of them open."""
        from apps.fleet.services import exclusion_end, exclusion_open

        rows = (
            ("trn004", 19.2, 18.8, "drained by the site, “bios”", "slurm", "slurm", "", "OBSERVED"),
            (
                "trn042",
                15.9,
                13.7,
                "XID 94, 3 times in 2 days",
                "policy",
                "operator",
                "GPU 2 reset, 4 h burn-in",
                "OURS",
            ),
            ("trn017", 11.5, 11.3, "HW thermal slowdown, 8 GPUs", "operator", "operator", "fan tray changed", "OURS"),
            ("trn042", 2.8, None, "uncorrectable ECC, row remap failed, GPU 2", "operator", "", "", "OURS"),
            ("trn059", 0.3, None, "XID 79, GPU 5 fell off the bus", "policy", "", "", "OURS"),
        )
        for name, began, ended, reason, by, ended_by, why, origin in rows:
            node_id = self.nodes[name]
            exclusion_open(
                node_id=node_id, reason=reason, by_name=by, origin=origin, source="WEB", now=self.ago(days=began)
            )
            if ended is not None:
                exclusion_end(node_id=node_id, reason=why, by_name=ended_by, source="WEB", now=self.ago(days=ended))

    def other_runs(self) -> None:
        """Runs in every other state."""
        from apps.runs.services import attempt_end, attempt_open, run_put, status_update

        late = self.ago(minutes=6)
        runs: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
            (
                "moe-30b",
                self.south,
                128,
                {"hang": "SUSPECTED", "step": 12_906, "step_s": None, "own_best_step_s": 6.10},
            ),
            (
                "sweep-3b",
                self.south,
                16,
                {"silent": True, "step": 9_210, "last_report_at": late, "own_best_step_s": 0.8},
            ),
            ("sft-8b", self.north, 32, {"step": 2_310, "step_s": 2.11, "own_best_step_s": 2.09, "ranks_reporting": 32}),
            ("asr-1b", self.south, 16, {"step": 40_000, "step_s": 0.42, "own_best_step_s": 0.41}),
            ("eval-70b", self.north, 0, {"queued": True}),
        )
        for slug, cluster, ranks, status in runs:
            plan = {"steps_planned": 40_000, "gpus_per_node": 8}
            run_id, _ = run_put(
                slug=slug, cluster_id=cluster, fields=plan, by="researcher", source="API", now=self.ago(days=1)
            )
            if ranks:
                opened, _ = attempt_open(
                    run_id=run_id, key="slurm:1.0.0", world_size=ranks, by="researcher", source="API",
                    now=self.ago(hours=11),
                )  # fmt: skip
                status_update(run_id=run_id, **{"last_report_at": self.ago(seconds=1), "first_step": 0, **status})
            else:
                status_update(run_id=run_id, **status)
            if slug == "asr-1b":
                attempt_end(
                    attempt_id=opened.id, reason="FINISHED", authority="CLIENT", by="asr-1b", source="SENDER",
                    now=self.ago(hours=2),
                )  # fmt: skip

    def all(self) -> Seeded:
        """Make everything but the telemetry, which `post` or the fold's own service brings."""
        self.clusters()
        self.run()
        self.status()
        self.node_events()
        self.trouble()
        self.ledger()
        self.other_runs()
        return Seeded(run=self.run_row, attempt=self.attempt, incident=self.incident, now=self.now)

    def post(self, site: Any) -> None:
        """Send the reports through the site's own door, and fold them as a worker would."""
        from apps.accounts.services import token_create

        _, self.secret = token_create(
            name="seed", scopes=["report"], cluster_id=self.north, by="test", source="API", now=self.now
        )
        self._send(site, self.reports(), now=self.now)
        self.status()

    def gauges(self, site: Any) -> None:
        """Half an hour of GPU gauges of the first three racks, as each node's own sender reports them: one node runs hot."""
        from apps.telemetry.services.fold import cluster_fold

        rng = np.random.default_rng(3)
        culprit = min(CULPRIT, self.shape.nodes - 1)
        for place, name in enumerate(NAMES[:24]):
            samples = []
            for back in range(120, -1, -1):
                hot = place == culprit
                warm = min(23.0, max(0.0, 100 - back) * 0.6) if hot else 0.0
                heat = 64 + place // 8 + warm + rng.standard_normal(8) * 0.6
                gpus = [
                    {
                        "gpu": f"GPU-{place:04d}{slot:04d}",
                        "index": slot,
                        "model": "NVIDIA H100 80GB HBM3",
                        "temperature_c": float(heat[slot]),
                        "sm_clock_mhz": 1455.0 if hot and back < 60 else 1980.0,
                        "power_w": 640.0,
                        "utilization": 0.97,
                    }
                    for slot in range(8)
                ]
                samples.append({"at": (self.now - timedelta(seconds=15 * back)).isoformat(), "gpus": gpus})
            report = {"sender": f"{name}-node", "boot": f"{place:032x}", "seq": 1, "sent_at": self.now.isoformat()}
            self._post(site, f"nodes/north:{name}/reports", {**report, "samples": samples})
        while cluster_fold(cluster_id=self.north, now=datetime.now(UTC)).more:
            continue

    def step_more(self, site: Any) -> None:
        """One more step of every rank, as its sender would report it, folded."""
        from apps.telemetry.services.fold import inbox_fold

        self.one_step(site, step=FIRST + STEPS, seq=2)
        while inbox_fold(attempt_id=self.attempt.id, now=datetime.now(UTC)).more:
            continue

    def restart(self, site: Any) -> None:
        """The run goes on in another attempt, from the newest save; its first step is reported and folded."""
        from apps.runs.selectors import attempt_by_id, placement_of
        from apps.runs.services import RankPlace, attempt_open, placement_merge
        from apps.telemetry.services.fold import inbox_fold

        before, now = placement_of(self.attempt.id), datetime.now(UTC)
        assert before is not None
        opened, _ = attempt_open(
            run_id=self.run_id, key="slurm:8200.0.0", world_size=self.shape.ranks, by="researcher", source="API",
            resumed_from_step=48_250, force=True, now=now,
        )  # fmt: skip
        places = [
            RankPlace(rank=rank, node_id=int(node), local_rank=rank % self.shape.per_node)
            for rank, node in enumerate(before.nodes)
        ]
        placement_merge(attempt_id=opened.id, places=places)
        self.attempt = attempt_by_id(opened.id)
        self.one_step(site, step=48_251, seq=3)
        while inbox_fold(attempt_id=self.attempt.id, now=datetime.now(UTC)).more:
            continue

    def one_step(self, site: Any, *, step: int, seq: int) -> None:
        """Post one step of every rank; whoever folds it is another's business."""
        from apps.common.ids import id_write

        now = datetime.now(UTC).isoformat()
        for place in range(self.shape.nodes):
            ranks = list(range(place * self.shape.per_node, (place + 1) * self.shape.per_node))
            values = (("step_s", 11.2), ("compute_s", 7.05), ("communication_s", 3.7))
            report = {
                "sender": self.names[place],
                "boot": f"{place:032x}",
                "seq": seq,
                "sent_at": now,
                "steps": {
                    "ranks": ranks,
                    "steps": [step],
                    "ended_at": [now],
                    "metrics": {name: [[value] for _ in ranks] for name, value in values},
                },
            }
            self._post(site, f"attempts/{id_write('att', self.attempt.id)}/reports", report)

    def note(self, text: str) -> None:
        """Somebody writes into the incident's timeline."""
        from apps.incidents.services import note_add

        note_add(
            incident_id=self.incident.id, text=text, happened_at=None, author_key="user:0", author_name="somebody",
            source="WEB", now=datetime.now(UTC),
        )  # fmt: skip

    def _send(self, site: Any, reports: list[dict[str, Any]], *, now: datetime) -> None:
        from apps.common.ids import id_write
        from apps.telemetry.services.fold import inbox_fold

        for report in reports:
            self._post(site, f"attempts/{id_write('att', self.attempt.id)}/reports", report)
        while inbox_fold(attempt_id=self.attempt.id, now=now).more:
            continue

    def _post(self, site: Any, path: str, body: dict[str, Any]) -> None:
        import urllib.request

        request = urllib.request.Request(f"{site.url}/api/v1/{path}", data=orjson.dumps(body), method="POST")
        request.add_header("Authorization", f"Bearer {self.secret}")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 202, answer.read()
