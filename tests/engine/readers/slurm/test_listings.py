"""Listings of every version and form as the same records; what is not understood is counted."""

import json
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.engine.readers.slurm import (
    SlurmNode,
    accounting_read,
    jobs_read,
    nodes_read,
    nodes_table_read,
    objects_read,
    summary_read,
)
from apps.engine.readers.slurm.states import job_state, node_state

SAMPLES = Path(__file__).parents[5] / "shared" / "samples" / "slurm"

NODE = """NodeName=trn041 Arch=x86_64 CoresPerSocket=1
   CPUAlloc=0 CPUTot=2 CPULoad=0.71
   OS=Linux 6.1 #1 SMP State of the art
   State=IDLE+DRAIN ThreadsPerCore=1 Owner=N/A
   Partitions=train,debug
   Reason=a|b "quoted" State=IDLE NodeName=evil =equals= [root@2026-11-30T12:50:48+0000]

"""

JOB = """JobId=7 JobName=x JobState=COMPLETED Reason=None
   UserId=mia(1000) GroupId=mia(1000) MCS_label=N/A
   Priority=0 Nice=0 Account=(null) QOS=(null)
   JobState=PENDING Reason=JobHeldUser Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:9
   SubmitTime=2026-11-30T12:51:45 EligibleTime=Unknown
   StartTime=Unknown EndTime=Unknown Deadline=N/A
   ReqNodeList=(null) ExcNodeList=trn[001-002]
   NodeList=
   Comment=paceline:ord_1.ab JobState=RUNNING
   WorkDir=/srv/a b

"""


def sample(name: str) -> Path:
    """A real text; the test says that it was skipped where the folder is not there."""
    if not SAMPLES.exists():
        pytest.skip("the folder of samples is not beside this checkout")
    return SAMPLES / name


class TestNodes:
    def test_a_reason_may_hold_anything_and_stays_a_reason(self) -> None:
        (node,) = nodes_read(NODE, zone=UTC).nodes

        assert (node.name, node.base, node.flags) == ("trn041", "IDLE", frozenset({"DRAIN"}))
        assert node.reason == 'a|b "quoted" State=IDLE NodeName=evil =equals='
        assert node.reason_by == "root"
        assert node.reason_at.at == datetime(2026, 11, 30, 12, 50, 48, tzinfo=UTC)
        assert node.partitions == ("train", "debug")

    def test_one_line_a_record_says_the_same_as_several(self) -> None:
        line = " ".join(part.strip() for part in NODE.splitlines()) + "\n"

        assert nodes_read(line, zone=UTC) == nodes_read(NODE, zone=UTC)

    def test_a_table_may_have_its_own_sign_in_a_reason(self) -> None:
        text = "NODELIST|STATE|REASON|TIMESTAMP\ntrn1|drained*|a|b|c|2026-11-30T12:50:48\nbroken\n"

        listing = nodes_table_read(text, zone=UTC)

        assert [(node.name, node.reason, node.state) for node in listing.nodes] == [
            ("trn1", "a|b|c", "IDLE+DRAIN+NOT_RESPONDING")
        ]
        assert listing.not_understood == 1

    def test_a_summary_unfolds_its_lists_and_refuses_a_bomb(self) -> None:
        text = "PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\ntrain* up inf 2 drng n[1-2]\nx up inf 9 idle n[1-9999999]\n"

        listing = summary_read(text)

        assert [(node.name, node.is_busy, node.is_out) for node in listing.nodes] == [
            ("n1", True, True),
            ("n2", True, True),
        ]
        assert listing.not_understood == 1

    @pytest.mark.parametrize(
        ("words", "usable", "out", "down"),
        [
            ("idle", True, False, False),
            ("mix", True, False, False),
            ("idle*", False, False, True),
            ("drain", False, True, False),
            ("drng", False, True, False),
            ("down$", False, False, True),
            ("maint", False, False, False),
            ("MIXED+DRAIN+DYNAMIC_NORM+MAINTENANCE+RESERVED", False, True, False),
            ("IDLE+PLANNED", False, False, False),
            (["ALLOCATED", "COMPLETING"], True, False, False),
            ("fail*", False, True, True),
            ("IDLE+POWERED_DOWN", False, False, True),
        ],
    )
    def test_a_state_is_a_base_and_flags(self, words: str | list[str], usable: bool, out: bool, down: bool) -> None:
        state = node_state(words)
        assert state is not None

        node = SlurmNode("n", *state)

        assert (node.is_usable, node.is_out, node.is_down) == (usable, out, down)

    @pytest.mark.parametrize(
        ("words", "failed"),
        [("idle~", False), ("IDLE+NOT_RESPONDING+POWERING_UP", False), ("idle*", True), ("DOWN+POWERED_DOWN", True)],
    )
    def test_what_is_switched_off_to_save_power_has_not_failed(self, words: str, failed: bool) -> None:
        state = node_state(words)
        assert state is not None

        assert SlurmNode("n", *state).is_failed == failed

    @pytest.mark.parametrize(
        ("name", "count"),
        [
            ("real2205_scontrol_show_node_multi.txt", 4),
            ("scontrol_show_nodes_o_24.11.txt", 20),
            ("scontrol_show_nodes_o_25.11_reservation_drain.txt", 7),
            ("scontrol_show_nodes_o_26.05.txt", 20),
        ],
    )
    def test_reads_every_version_of_scontrol(self, name: str, count: int) -> None:
        listing = nodes_read(sample(name).read_text(), zone=UTC)

        assert (len(listing.nodes), listing.not_understood) == (count, 0)

    def test_counts_the_usable_of_a_real_cluster(self) -> None:
        text = sample("sinfo_709_nodes_states.csv").read_text()

        nodes = nodes_table_read(text, zone=UTC, columns=("name", "state"), sign=",").nodes

        assert len(nodes) == 709
        assert sum(node.is_usable for node in nodes) == 613
        assert sum(node.is_out and node.is_busy for node in nodes) == 10
        assert sum(not node.is_usable and not (node.is_out and node.is_busy) for node in nodes) == 86

    @pytest.mark.parametrize(
        "name", sorted(path.name for path in SAMPLES.glob("*.json")) if SAMPLES.exists() else ["none.json"]
    )
    def test_reads_every_version_of_json(self, name: str) -> None:
        answer = json.loads(sample(name).read_text())

        listing = objects_read(answer.get("nodes", ()), answer.get("jobs", ()))

        assert listing.not_understood == 0
        assert len(listing.nodes) + len(listing.jobs) == len(answer.get("nodes", ())) + len(answer.get("jobs", ()))


class TestJobs:
    def test_what_people_wrote_is_no_field(self) -> None:
        (job,) = jobs_read(JOB, zone=UTC).jobs

        assert (job.id, job.state, job.restarts) == (7, "PENDING", 2)
        assert job.name == "x JobState=COMPLETED Reason=None"
        assert job.comment == "paceline:ord_1.ab JobState=RUNNING"
        assert (job.exit_status, job.exit_signal) == (None, 9)
        assert job.exc_nodes == "trn[001-002]"
        assert job.is_held

    def test_times_without_an_offset_are_of_the_sources_zone_and_in_order(self) -> None:
        told = {"submit_time": "2026-10-25T02:50:00", "start_time": "2026-10-25T02:10:00", "end_time": 1792900000}
        node = {"name": "trn001", "state": "idle", "reason_changed_at": "2026-07-01T12:00:00"}

        listing = objects_read([node], [{"job_id": 7, "job_state": "FAILED", **told}], zone=ZoneInfo("Europe/Paris"))

        (job,) = listing.jobs
        assert listing.nodes[0].reason_at.at == datetime(2026, 7, 1, 10, 0, tzinfo=UTC)
        assert job.submitted_at.at == datetime(2026, 10, 25, 0, 50, tzinfo=UTC)
        assert job.started_at.at == datetime(2026, 10, 25, 1, 10, tzinfo=UTC)
        assert job.started_at.uncertain
        assert job.ended_at.at == datetime.fromtimestamp(1792900000, UTC)

    def test_a_job_on_its_way_back_into_the_queue_is_not_over(self) -> None:
        listing = objects_read(jobs=[{"job_id": 7, "job_state": ["NODE_FAIL", "REQUEUED"]}])

        assert not listing.jobs[0].is_over

    @pytest.mark.parametrize(
        ("words", "state"),
        [("CANCELLED by 0", "CANCELLED"), ("CD", "COMPLETED"), ("COMPLETING", "COMPLETING"), (["TIMEOUT"], "TIMEOUT")],
    )
    def test_a_state_word_is_read_in_every_spelling(self, words: str | list[str], state: str) -> None:
        found = job_state(words)

        assert found is not None
        assert found[0] == state

    @pytest.mark.parametrize(
        ("value", "status", "signal"),
        [
            (9, None, 9),
            (256, 1, None),
            ({"return_code": {"set": True, "number": 6}, "signal": {"id": {"set": False}}}, 6, None),
            ({"return_code": {"set": False}, "signal": {"id": {"set": True, "number": 15}}}, None, 15),
            (None, None, None),
        ],
    )
    def test_an_exit_is_a_status_or_a_signal(self, value: object, status: int | None, signal: int | None) -> None:
        (job,) = objects_read(jobs=[{"job_id": 7, "job_state": "FAILED", "exit_code": value}]).jobs

        assert (job.exit_status, job.exit_signal) == (status, signal)


class TestNodesAsked:
    @pytest.mark.parametrize(
        ("said", "asked"),
        [
            ("NumNodes=3 NumCPUs=6", 3),
            ("NumNodes=2-4 NumCPUs=2", 2),
            ("NumNodes=1K NumCPUs=2K", 1024),
            ("NumNodes=4 NumCPUs=8\n   ReqTRES=cpu=4,mem=1G,node=2,billing=4\n   AllocTRES=cpu=8,node=4", 2),
            ("NumNodes=4 NumCPUs=2\n   TRES=cpu=2,mem=1G,node=2,billing=2", 2),
            ("NumNodes=2 NumCPUs=3 NumTasks=3\n   TRES=cpu=3,mem=1G,node=1,billing=3", 2),
            ("NumCPUs=6", None),
        ],
    )
    def test_scontrol_tells_the_least_with_which_it_would_begin(self, said: str, asked: int | None) -> None:
        text = (
            f"JobId=7 JobName=NumNodes=9\n   JobState=PENDING\n   Partition=train,spare AllocNode:Sid=a:1\n   {said}\n"
        )

        (job,) = jobs_read(text, zone=UTC).jobs

        assert (job.nodes_asked, job.partitions) == (asked, ("train", "spare"))

    def test_what_a_running_job_of_22_05_has_is_not_taken_for_what_it_requested(self) -> None:
        text = "JobId=7 JobName=x\n   JobState=RUNNING\n   NumNodes=2 NumCPUs=3\n   TRES=cpu=8,node=4\n"

        assert jobs_read(text, zone=UTC).jobs[0].nodes_asked == 2

    @pytest.mark.parametrize(
        ("given", "asked"),
        [
            ({"node_count": 3}, 3),
            ({"node_count": "2-4"}, 2),
            ({"node_count": {"set": True, "infinite": False, "number": 3}}, 3),
            ({"node_count": {"set": True, "infinite": True, "number": 0}}, None),
            ({"node_count": {"set": False, "infinite": False, "number": 0}}, None),
            ({"node_count": 4, "tres_req_str": "cpu=4,node=2,billing=4"}, 2),
            ({"allocation_nodes": 4, "tres": {"requested": [{"type": "node", "name": "", "id": 4, "count": 3}]}}, 3),
            ({"allocation_nodes": 4, "tres": {"requested": None}}, 4),
            ({}, None),
        ],
    )
    def test_json_tells_the_same_in_every_version(self, given: dict[str, object], asked: int | None) -> None:
        (job,) = objects_read(jobs=[{"job_id": 7, "job_state": ["PENDING"], "partition": "train,spare", **given}]).jobs

        assert (job.nodes_asked, job.partitions) == (asked, ("train", "spare"))

    def test_the_accounting_tells_it_where_its_columns_do(self) -> None:
        data = b"JobID|State|NNodes|ReqTRES|Partition\n7|FAILED|4|cpu=4,node=2|train\n8|FAILED|4||train\n"

        listing = accounting_read(data, zone=UTC)

        assert [(job.nodes_asked, job.partitions) for job in listing.jobs] == [(2, ("train",)), (4, ("train",))]


class TestAccounting:
    def test_records_are_found_by_their_fields_and_not_by_their_lines(self) -> None:
        data = (
            b"JobID|State|ExitCode|SubmitLine|NodeList\n"
            b"7|REQUEUED|0:0|srun a\nb\\nc|n1\n7|FAILED|6:0|srun \xff|n2\n7.batch|FAILED|6:0||n2\ncut|off\n"
        )

        listing = accounting_read(data, zone=UTC)

        assert [(job.id, job.step, job.state, job.nodes) for job in listing.jobs] == [
            (7, "", "REQUEUED", "n1"),
            (7, "", "FAILED", "n2"),
            (7, "batch", "FAILED", "n2"),
        ]
        assert (listing.repaired, listing.not_understood) == (1, 1)

    @pytest.mark.parametrize(
        ("name", "sign", "count"),
        [
            ("sacct_parsable_2048gpu_multiline_fields.txt", "|#", 6),
            ("sacct_parsable_one_multiline.txt", "|#", 4),
            ("sacct_parsable_fake_line_break.txt", "|#", 4),
            ("sacct_invalid_utf8.txt", "|", 7),
        ],
    )
    def test_reads_real_accounts(self, name: str, sign: str, count: int) -> None:
        listing = accounting_read(sample(name).read_bytes(), zone=UTC, sign=sign)

        assert len(listing.jobs) == count


class TestAnything:
    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine may take its time
    @given(st.text(max_size=400))
    def test_no_text_breaks_a_reader(self, text: str) -> None:
        first = [
            nodes_read("NodeName=a State=IDLE\n\n" + text, zone=UTC).nodes[0].name,
            nodes_table_read("a|idle|none|root|Unknown\n" + text, zone=UTC).nodes[0].name,
            summary_read("train up infinite 1 idle a\n" + text).nodes[0].name,
        ]
        jobs_read("JobId=1 JobState=RUNNING\n" + text, zone=UTC)
        accounts = accounting_read(b"JobID|State\n7|FAILED\n" + text.encode("utf-8", "surrogatepass"), zone=UTC)

        assert first == ["a", "a", "a"]
        assert len(accounts.jobs) + accounts.not_understood >= 1

    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine may take its time
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["name", "state", "job_id", "job_state", "exit_code", "start_time", "comment", "number"]
                    ),
                    inner,
                    max_size=8,
                )
            ),
            max_leaves=12,
        )
    )
    def test_no_object_breaks_a_reader(self, value: object) -> None:
        listing = objects_read([value], [value])

        assert len(listing.nodes) + len(listing.jobs) + listing.not_understood == 2
