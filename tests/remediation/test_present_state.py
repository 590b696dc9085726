"""Many nodes at once are one shared cause; after a pause nothing acts on what was so before it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apps.diagnosis.models import Finding
from apps.engine.readers.slurm import SlurmNode
from apps.fleet.models import Exclusion
from apps.fleet.selectors import nodes_of
from apps.fleet.services import cluster_ensure, exclusion_open, node_place, nodes_ensure
from apps.incidents.models import Incident, Notice, NoticeTarget
from apps.incidents.services import incidents_settle, nodes_down_together
from apps.journal.choices import StreamKey
from apps.journal.models import Event
from apps.journal.services import recording
from apps.remediation import selectors, services, tasks
from apps.remediation.models import Action
from apps.remediation.selectors.guards import guards_of_exclusion
from apps.remediation.selectors.pool import pool_of
from apps.remediation.services import guard_set, nodes_seen
from apps.runs.selectors import run_by_id
from apps.runs.services import RankPlace, StateChanged, attempt_end, attempt_open, placement_merge, run_put
from apps.telemetry.models import DoorBeat
from tests.remediation.test_proposals import proposals

pytestmark = pytest.mark.django_db
AWAY = frozenset({"NOT_RESPONDING"})


def see(cluster: int, moment: datetime, names: list[str], *, down: bool) -> None:
    nodes = [
        SlurmNode(name, "DOWN", AWAY, "Not responding", "slurm") if down else SlurmNode(name, "IDLE") for name in names
    ]
    nodes_seen(cluster_id=cluster, nodes=nodes, at=moment, now=moment)


NAMES = [f"trn{number:03d}" for number in range(1, 64)]


class TestSharedCause:
    """Case 17: 54 nodes “fail” in the same second."""

    def test_many_nodes_down_at_once_are_one_incident_and_no_exclusion(
        self, cluster: int, later: Callable[[float], datetime]
    ) -> None:
        see(cluster, later(0), NAMES, down=False)
        see(cluster, later(5), NAMES[:54], down=True)
        see(cluster, later(10), NAMES[:54], down=True)

        (incident,) = Incident.objects.all()
        assert (incident.cause, incident.level, incident.run_id, incident.state) == (
            "nodes_down", "CRITICAL", None, "OPEN",
        )  # fmt: skip
        assert incident.title.startswith("54 nodes went down together: trn001, trn002, trn003 and 51 more.")
        assert incident.subject["kind"] == "CLUSTER"
        assert not Exclusion.objects.exists()
        assert not Action.objects.exists()

    def test_two_are_none(self, cluster: int, later: Callable[[float], datetime]) -> None:
        see(cluster, later(0), NAMES, down=False)
        see(cluster, later(5), NAMES[:2], down=True)

        assert not Incident.objects.exists()

    def test_those_of_one_minute_count_together_and_later_ones_join(
        self, cluster: int, later: Callable[[float], datetime]
    ) -> None:
        see(cluster, later(0), NAMES, down=False)
        see(cluster, later(5), NAMES[:2], down=True)
        see(cluster, later(30), NAMES[:3], down=True)
        see(cluster, later(60), NAMES[:5], down=True)

        (incident,) = Incident.objects.all()
        assert incident.subject["nodes"] == NAMES[:5]
        assert incident.count == 2

    def test_those_that_go_one_by_one_over_hours_are_none(
        self, cluster: int, later: Callable[[float], datetime]
    ) -> None:
        see(cluster, later(0), NAMES, down=False)
        for place in range(1, 5):
            see(cluster, later(3600 * place), NAMES[:place], down=True)

        assert not Incident.objects.exists()

    def test_three_that_are_rebooted_one_after_the_other_are_none(
        self, cluster: int, later: Callable[[float], datetime]
    ) -> None:
        see(cluster, later(0), NAMES, down=False)
        for place in range(3):
            see(cluster, later(10 + 15 * place), [NAMES[place]], down=True)
            see(cluster, later(20 + 15 * place), [NAMES[place]], down=False)

        assert not Incident.objects.exists()

    def test_what_went_a_moment_ago_counts_however_much_else_the_cluster_tells(
        self, cluster: int, later: Callable[[float], datetime]
    ) -> None:
        see(cluster, later(0), NAMES, down=False)
        see(cluster, later(5), NAMES[:2], down=True)
        with recording(now=later(6)) as log:
            for number in range(60):
                log.add(StreamKey.cluster(cluster), kind="node.noted", text=f"note {number}", source="SYSTEM")
        see(cluster, later(20), NAMES[:3], down=True)

        assert Incident.objects.get().subject["nodes"] == NAMES[:3]

    def test_a_second_group_is_told_while_the_first_is_down(
        self, cluster: int, later: Callable[[float], datetime]
    ) -> None:
        NoticeTarget.objects.create(name="pager", url="http://127.0.0.1:9/", secret="s" * 32, created_at=later(0))
        see(cluster, later(0), NAMES, down=False)
        see(cluster, later(5), NAMES[:8], down=True)
        see(cluster, later(100), NAMES[1:8], down=False)
        see(cluster, later(600), NAMES[20:24], down=True)
        see(cluster, later(620), NAMES[24:25], down=True)

        incident = Incident.objects.get()
        assert incident.subject["nodes"] == [NAMES[0], *NAMES[20:25]]
        assert incident.title.startswith("5 nodes went down together: trn021")
        assert incident.title.endswith("1 of a group before them are still down.")
        assert [row.kind for row in Notice.objects.order_by("pk")] == ["OPENED", "JOINED"]
        assert Notice.objects.get(kind="JOINED").payload["title"].startswith("4 nodes went down together: trn021")

    def test_a_second_group_when_the_first_is_up_again_is_an_incident_of_its_own(
        self, cluster: int, later: Callable[[float], datetime]
    ) -> None:
        see(cluster, later(0), NAMES, down=False)
        see(cluster, later(5), NAMES[:8], down=True)
        see(cluster, later(600), NAMES[:20], down=False)
        see(cluster, later(700), NAMES[20:24], down=True)

        assert [row.state for row in Incident.objects.order_by("pk")] == ["RESOLVED", "OPEN"]

    def test_names_the_place_that_they_share(self, cluster: int, later: Callable[[float], datetime]) -> None:
        see(cluster, later(0), NAMES, down=False)
        for row in nodes_of(cluster_id=cluster)[:4]:
            node_place(node_id=row.id, rack="r1", rack_slot="", leaf="leaf-3")
        see(cluster, later(5), NAMES[:4], down=True)

        assert Incident.objects.get().subject["kind"] == "SWITCH"
        assert "behind leaf-3" in Incident.objects.get().title

    def test_is_over_when_all_are_up_again_and_not_before(
        self, cluster: int, later: Callable[[float], datetime]
    ) -> None:
        see(cluster, later(0), NAMES, down=False)
        see(cluster, later(5), NAMES[:9], down=True)
        see(cluster, later(100), NAMES[:8], down=False)
        incidents_settle(now=later(7200))
        assert Incident.objects.get().state == "OPEN"

        see(cluster, later(7300), NAMES, down=False)

        assert Incident.objects.get().state == "RESOLVED"

    def test_its_page_and_its_answer_can_be_read(
        self, cluster: int, operator: Any, client_as: Callable[[Any], Any], api: Callable[..., Any],
        later: Callable[[float], datetime],
    ) -> None:  # fmt: skip
        see(cluster, later(0), NAMES, down=False)
        see(cluster, later(5), NAMES[:54], down=True)
        number = Incident.objects.get().number

        page = client_as(operator).get(f"/incidents/{number}")
        answer = api("read").get("/api/v1/incidents?state=OPEN").json()["results"]

        assert page.status_code == 200
        assert "54 nodes went down together" in page.content.decode().replace("\xa0", " ")
        assert [row["cause"] for row in answer] == ["nodes_down"]
        assert client_as(operator).get("/incidents").status_code == 200
        assert client_as(operator).get("/").status_code == 200


class TestNoMassProposals:
    def lost(self, find: Callable[..., Finding], name: str, **more: Any) -> Finding:
        subject = {"kind": "NODE", "node": name}
        given = {"cause": "rank_lost", "subject": subject, "subject_key": f"NODE:{name}", "proposal_node": name}
        return find(**{**given, **more})

    def test_three_nodes_with_one_cause_in_a_minute_are_proposed_by_nobody(
        self,
        find: Callable[..., Finding],
        hooked: Any,
        now: datetime,
    ) -> None:
        nodes_ensure(cluster_id=hooked.cluster_id, names=["trn003"], now=now)
        self.lost(find, "trn001")
        services.findings_consider(now=now)
        assert len(proposals()) == 1
        for name in ("trn002", "trn003"):
            self.lost(find, name)
        services.findings_consider(now=now + timedelta(seconds=5))

        assert proposals() == []
        (withheld,) = Event.objects.filter(kind="proposal.withheld")
        assert "3 nodes at once share a cause" in withheld.payload["text"]
        assert Action.objects.get().outcome.endswith("3 nodes at once share a cause.")

    def test_what_is_proposed_of_a_node_of_that_name_in_another_cluster_stands(
        self, find: Callable[..., Finding], hooked: Any, make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        south = cluster_ensure(name="south", now=now)
        fields = {"launcher": {"kind": "WEBHOOK", "url": "http://127.0.0.1:9/"}, "mode": "PROPOSE"}
        other, _ = run_put(slug="other", cluster_id=south, fields=fields, by="t", source="API", now=now)
        there = make_attempt(run_by_id(other), key="slurm:2.0.0")
        nodes_ensure(cluster_id=hooked.cluster_id, names=["trn003"], now=now)
        self.lost(find, "trn001", run_id=other, attempt_id=there.id)
        services.findings_consider(now=now)
        for name in ("trn001", "trn002", "trn003"):
            self.lost(find, name)
        services.findings_consider(now=now + timedelta(seconds=5))

        assert [(row.run, row.node) for row in proposals()] == [("other", "trn001")]

    def test_two_are_proposed_as_ever(
        self,
        find: Callable[..., Finding],
        hooked: Any,
        now: datetime,
    ) -> None:
        for name in ("trn001", "trn002"):
            self.lost(find, name)
        services.findings_consider(now=now)

        assert len(proposals()) == 2

    def test_those_that_come_hours_apart_are_each_their_own(
        self,
        find: Callable[..., Finding],
        hooked: Any,
        now: datetime,
    ) -> None:
        nodes_ensure(cluster_id=hooked.cluster_id, names=["trn003"], now=now)
        for place, name in enumerate(("trn001", "trn002", "trn003")):
            self.lost(find, name, found_at=now + timedelta(hours=place))
        services.findings_consider(now=now + timedelta(hours=3))

        assert len(proposals()) == 3

    def test_three_slow_nodes_found_after_a_start_are_each_their_own(
        self,
        find: Callable[..., Finding],
        hooked: Any,
        now: datetime,
    ) -> None:
        nodes_ensure(cluster_id=hooked.cluster_id, names=["trn003"], now=now)
        for name in ("trn001", "trn002", "trn003"):
            self.lost(find, name, cause="compute_straggler")
        services.findings_consider(now=now)

        assert len(proposals()) == 3

    def test_a_node_of_those_that_the_scheduler_saw_go_together_is_not_proposed(
        self,
        find: Callable[..., Finding],
        hooked: Any,
        now: datetime,
        later: Callable[[float], datetime],
    ) -> None:
        see(hooked.cluster_id, later(0), NAMES, down=False)
        see(hooked.cluster_id, later(5), NAMES[:54], down=True)
        self.lost(find, "trn001")
        services.findings_consider(now=later(6))

        assert proposals() == []

    def test_a_node_that_is_long_up_again_is_proposed_as_ever(
        self,
        find: Callable[..., Finding],
        hooked: Any,
        later: Callable[[float], datetime],
    ) -> None:
        see(hooked.cluster_id, later(0), NAMES, down=False)
        see(hooked.cluster_id, later(5), NAMES[:8], down=True)
        see(hooked.cluster_id, later(300), NAMES[:7], down=False)
        moment = later(10 * 86400)
        self.lost(find, "trn003", cause="gpu_lost", found_at=moment)
        services.findings_consider(now=moment)

        assert Incident.objects.get(cause="nodes_down").state == "OPEN"
        assert [row.node for row in proposals()] == ["trn003"]

    def test_nodes_that_are_switched_off_to_save_power_did_not_go_down(self, cluster: int, now: datetime) -> None:
        for place, flags in enumerate(
            [frozenset(), frozenset({"POWERING_DOWN"}), frozenset({"POWERED_DOWN"}), frozenset()]
        ):
            told = [SlurmNode(name, "IDLE", flags) for name in NAMES[:4]]
            nodes_seen(cluster_id=cluster, nodes=told, at=now + timedelta(seconds=place), now=now)

        assert not Event.objects.filter(kind__in=["nodes.down", "nodes.up"]).exists()
        assert not Incident.objects.exists()

    def test_a_node_that_failed_is_not_up_again_because_it_is_switched_off(self, cluster: int, now: datetime) -> None:
        for place, (base, *flags) in enumerate([("IDLE",), ("DOWN",), ("DOWN", "POWERED_DOWN")]):
            told = [SlurmNode(name, base, frozenset(flags)) for name in NAMES[:4]]
            nodes_seen(cluster_id=cluster, nodes=told, at=now + timedelta(seconds=place), now=now)

        told_of = Event.objects.filter(kind__in=["nodes.down", "nodes.up"])
        assert list(told_of.values_list("kind", flat=True)) == ["nodes.down"]

    def test_nodes_that_registered_wrongly_are_still_down_until_they_are_told_of_again(
        self, cluster: int, later: Callable[[float], datetime]
    ) -> None:
        see(cluster, later(0), NAMES, down=False)
        wrong = [SlurmNode(name, "IDLE", frozenset({"INVALID_REG"})) for name in NAMES[:4]]
        nodes_seen(cluster_id=cluster, nodes=wrong, at=later(5), now=later(5))

        assert nodes_down_together(cluster, at=later(6)) == set(NAMES[:4])

    def test_a_node_that_stays_as_it_is_is_told_of_once(self, cluster: int, now: datetime) -> None:
        drained = frozenset({"DRAIN", "INVALID_REG"})
        for place, flags in enumerate([frozenset[str](), drained, drained, drained]):
            told = [SlurmNode(NAMES[0], "IDLE", flags)]
            nodes_seen(cluster_id=cluster, nodes=told, at=now + timedelta(seconds=place), now=now)

        assert Event.objects.filter(kind="nodes.down").count() == 1

    def test_a_fault_long_after_they_went_is_its_own(
        self,
        find: Callable[..., Finding],
        hooked: Any,
        later: Callable[[float], datetime],
    ) -> None:
        see(hooked.cluster_id, later(0), NAMES, down=False)
        see(hooked.cluster_id, later(5), NAMES[:8], down=True)
        self.lost(find, "trn003", found_at=later(86400))
        services.findings_consider(now=later(86400))

        assert [row.node for row in proposals()] == ["trn003"]


class TestLimits:
    def test_five_percent_of_63_nodes_are_three(
        self, make_run: Callable[..., Any], boss: Any, cluster: int, now: datetime
    ) -> None:
        ids = nodes_ensure(cluster_id=cluster, names=NAMES, now=now)
        run = make_run("dense-7b", launcher={"kind": "LOCAL", "command": ["/bin/true"], "nodes": NAMES})
        guard_set(
            principal=boss, cluster_id=cluster, window_s=3600, exclusions_per_window=3, share_of_run=0.05,
            source="API", now=now,
        )  # fmt: skip
        holds = []
        for n in (3, 4):
            adding = [ids[name] for name in NAMES[:n]]
            guards, _ = guards_of_exclusion(cluster_id=cluster, run=run, adding=adding, pool=pool_of(cluster), now=now)
            holds.append([row.holds for row in guards])

        assert holds == [[True, True], [False, False]]

    def test_nodes_that_the_run_cannot_use_take_nothing_from_its_limit(
        self, make_run: Callable[..., Any], cluster: int, now: datetime
    ) -> None:
        others = nodes_ensure(cluster_id=cluster, names=[f"cpu{i}" for i in range(6)], now=now)
        ids = nodes_ensure(cluster_id=cluster, names=NAMES, now=now)
        for node in others.values():
            exclusion_open(node_id=node, reason="disks", by_name="mia", origin="OURS", source="WEB", now=now)
        run = make_run("dense-7b", launcher={"kind": "LOCAL", "command": ["/bin/true"], "nodes": NAMES})
        pool = pool_of(cluster)

        of_run, blast = guards_of_exclusion(cluster_id=cluster, run=run, adding=[ids["trn001"]], pool=pool, now=now)
        of_all, _ = guards_of_exclusion(cluster_id=cluster, run=None, adding=[ids["trn001"]], pool=pool, now=now)

        assert all(row.holds for row in of_run)
        assert (blast.out_now, blast.nodes) == (0, 63)
        assert not all(row.holds for row in of_all)

    def test_a_restart_forgets_nothing_that_was_taken_from_the_run_before(
        self, make_run: Callable[..., Any], cluster: int, now: datetime
    ) -> None:
        ids = list(nodes_ensure(cluster_id=cluster, names=NAMES[:24], now=now).values())
        run, holds = make_run("dense-7b", launcher={"kind": "SLURM"}), []
        for n in range(4):
            sits_on(run, f"slurm:1.{n}", ids[n : n + 20], now=now)  # each time one goes and a spare comes
            guards, _ = guards_of_exclusion(
                cluster_id=cluster, run=run_by_id(run.id), adding=[ids[n]], pool=pool_of(cluster), now=now
            )
            holds.append({row.name: row.holds for row in guards})
            exclusion_open(node_id=ids[n], reason="hot", by_name="mia", origin="OURS", source="WEB", now=now)

        assert [row["share_of_run"] for row in holds] == [True, True, False, False]

    def test_an_attempt_that_has_not_told_where_it_sits_is_as_large_as_the_one_before(
        self, make_run: Callable[..., Any], cluster: int, now: datetime
    ) -> None:
        ids = list(nodes_ensure(cluster_id=cluster, names=NAMES[:40], now=now).values())
        run = make_run("dense-7b", launcher={"kind": "SLURM"})
        sits_on(run, "slurm:1.0", ids[:40], now=now)
        sits_on(run, "slurm:1.1", ids[:3], ranks=40, now=now)

        guards, _ = guards_of_exclusion(
            cluster_id=cluster, run=run_by_id(run.id), adding=ids[:4], pool=pool_of(cluster), now=now
        )

        assert {row.name: (row.have, row.most) for row in guards}["share_of_run"] == (4, 4)

    def test_a_node_alone_is_put_out_within_the_share_of_the_run_that_works_on_it(
        self, make_run: Callable[..., Any], ask: Callable[..., Any], cluster: int, now: datetime
    ) -> None:
        ids = list(nodes_ensure(cluster_id=cluster, names=NAMES[:4], now=now).values())
        run = make_run("dense-7b", launcher={"kind": "SLURM"})
        sits_on(run, "slurm:1.0", ids, now=now)
        ask("EXCLUDE_NODE", node=ids[0])

        with pytest.raises(services.GuardClosed) as error:
            ask("EXCLUDE_NODE", node=ids[1])

        assert error.value.facts == {"guard": "share_of_run", "after": 2, "limit": 1}

    def test_what_the_site_put_out_takes_nothing_from_the_share(
        self, make_run: Callable[..., Any], cluster: int, now: datetime
    ) -> None:
        ids = nodes_ensure(cluster_id=cluster, names=NAMES[:20], now=now)
        run = make_run("dense-7b", launcher={"kind": "LOCAL", "command": ["/bin/true"], "nodes": NAMES[:20]})
        for name in NAMES[:5]:
            exclusion_open(node_id=ids[name], reason="fans", by_name="root", origin="OBSERVED", source="SLURM", now=now)

        guards, blast = guards_of_exclusion(
            cluster_id=cluster, run=run, adding=[ids["trn010"]], pool=pool_of(cluster), now=now
        )

        assert all(row.holds for row in guards)
        assert "0 of 20 nodes of dense-7b are out, beside 5 by others" in guards[-1].text
        assert blast.out_now == 5

    def test_naming_a_run_that_cannot_use_the_node_is_no_way_around_the_limit(
        self, make_run: Callable[..., Any], cluster: int, now: datetime
    ) -> None:
        others = nodes_ensure(cluster_id=cluster, names=[f"cpu{i}" for i in range(7)], now=now)
        for name in list(others)[:6]:
            exclusion_open(node_id=others[name], reason="disks", by_name="mia", origin="OURS", source="WEB", now=now)
        run = make_run("dense-7b", launcher={"kind": "LOCAL", "command": ["/bin/true"], "nodes": NAMES})
        nodes_ensure(cluster_id=cluster, names=NAMES, now=now)

        guards, _ = guards_of_exclusion(
            cluster_id=cluster, run=run, adding=[others["cpu6"]], pool=pool_of(cluster), now=now
        )

        assert not all(row.holds for row in guards)


def sits_on(run: Any, key: str, nodes: list[int], *, now: datetime, ranks: int | None = None) -> None:
    """Open an attempt of a run with a rank on each of these nodes; `ranks` more than that have not told yet."""
    row, _ = attempt_open(
        run_id=run.id, key=key, world_size=ranks or len(nodes), by="t", source="API", now=now, force=True
    )
    places = [RankPlace(rank=rank, node_id=node, local_rank=0) for rank, node in enumerate(nodes)]
    placement_merge(attempt_id=row.id, places=places)


def door(*, since: datetime, beat: datetime) -> None:
    """Let the report door have taken reports since a moment, up to a last beat."""
    DoorBeat.objects.all().delete()
    DoorBeat.objects.create(instance="p", accepting_since=since, last_beat_at=beat)


class TestAfterAPause:
    def test_nothing_is_proposed_while_paceline_hears_nothing_or_has_just_begun_to(
        self,
        find: Callable[..., Finding],
        now: datetime,
    ) -> None:
        find()
        door(since=now - timedelta(days=7), beat=now - timedelta(hours=1))
        services.findings_consider(now=now)
        door(since=now - timedelta(seconds=5), beat=now)
        services.findings_consider(now=now)
        assert proposals() == []

        door(since=now - timedelta(seconds=60), beat=now)
        services.findings_consider(now=now)

        assert len(proposals()) == 1

    def test_a_proposal_of_last_week_is_gone(self, find: Callable[..., Finding], now: datetime) -> None:
        find()
        services.findings_consider(now=now - timedelta(days=7))

        tasks.orders_sweep()

        assert [row.state for row in selectors.actions_of()] == ["EXPIRED"]

    def test_a_proposal_about_an_attempt_that_is_over_is_taken_back_and_never_accepted(
        self,
        find: Callable[..., Finding],
        hooked: Any,
        make_attempt: Callable[..., Any],
        who: Any,
    ) -> None:
        moment = datetime.now(UTC)
        find()
        services.findings_consider(now=moment)
        (row,) = proposals()
        attempt_end(attempt_id=hooked.attempt_id, reason="CRASHED", authority="ORDER", by="t", source="API", now=moment)
        make_attempt(run_by_id(hooked.id), key="slurm:1.1.0")

        with pytest.raises(StateChanged, match="moved on"):
            services.action_accept(principal=who, action_id=row.id, source="WEB", now=moment)
        tasks.orders_sweep()

        row = selectors.action_by_id(row.id)
        assert row.state == "EXPIRED"
        assert "moved on to attempt 2" in row.outcome

    def test_a_restart_that_waited_for_an_end_that_nobody_saw_is_off(
        self, local_run: Any, make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        from apps.remediation.models import Launch, Order
        from apps.remediation.services import action_advance

        attempt = make_attempt(local_run)

        action = Action.objects.create(
            kind="RESTART_RUN", state="REQUESTED", run_id=local_run.id, reason="again when it ends", requested_by="mia",
            requested_by_key="user:1", source="WEB", requested_at=now, expires_at=now + timedelta(days=30),
            expected_attempt_id=attempt.id, options={"when": "RUN_END"},
        )  # fmt: skip
        attempt_end(attempt_id=attempt.id, reason="CRASHED", authority="ORDER", by="t", source="API", now=now)
        back = now + timedelta(days=7)
        door(since=back - timedelta(seconds=30), beat=back)

        action_advance(action_id=action.pk, now=back)

        row = selectors.action_by_id(action.pk)
        assert row.state == "REFUSED"
        assert "while Paceline did not look" in row.outcome
        assert (Order.objects.count(), Launch.objects.count()) == (0, 0)

    def test_an_end_that_was_seen_begins_the_restart(
        self, local_run: Any, make_attempt: Callable[..., Any], now: datetime
    ) -> None:
        from apps.remediation.models import Order
        from apps.remediation.services import action_advance

        attempt = make_attempt(local_run)
        action = Action.objects.create(
            kind="RESTART_RUN", state="REQUESTED", run_id=local_run.id, reason="again when it ends", requested_by="mia",
            requested_by_key="user:1", source="WEB", requested_at=now, expires_at=now + timedelta(days=30),
            expected_attempt_id=attempt.id, options={"when": "RUN_END"},
        )  # fmt: skip
        attempt_end(attempt_id=attempt.id, reason="CRASHED", authority="ORDER", by="t", source="API", now=now)
        door(since=now - timedelta(days=1), beat=now + timedelta(hours=1))

        action_advance(action_id=action.pk, now=now + timedelta(hours=1))

        assert Order.objects.filter(action=action).count() == 1
