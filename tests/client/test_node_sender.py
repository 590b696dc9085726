"""The node's own sender: what it reads, in the names of the report format, and what it can't read."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from paceline.gpus import FIELDS, LABELS, NvidiaSmi, gpus_by_index, gpus_read
from paceline.host import Host
from paceline.nfs import mounts_read, nfs_gauges, nfs_worst
from paceline.node import settings_read
from paceline.spool import Entry, Spool, Target

from tests.client.conftest import ROOT
from tests.client.server import RecordingServer, eventually

SAMPLES = ROOT.parent / "shared" / "samples" / "nvidia-smi"

PROGRAM = '''#!{python}
"""Answers like nvidia-smi of a driver that knows only some names."""
import sys
known = {known!r}
asked = next(word for word in sys.argv if word.startswith("--query-gpu=")).partition("=")[2].split(",")
for name in asked:
    if name not in known:
        print(f'Field "{{name}}" is not a valid field to query.')
        sys.exit(2)
for row in {rows!r}:
    print(", ".join(row[name] for name in asked))
'''

HEALTHY = {
    "uuid": "GPU-11111111-aaaa-bbbb-cccc-000000000001",
    "pci.bus_id": "00000008:01:00.0",
    "index": "0",
    "name": "Some GPU 80GB",
    "temperature.gpu": "53",
    "temperature.memory": "59",
    "clocks.current.sm": "1980",
    "power.draw": "433.78",
    "utilization.gpu": "87",
    "memory.used": "11125",
    "clocks_throttle_reasons.active": "0x0000000000000024",
    "ecc.errors.corrected.aggregate.total": "3",
    "ecc.errors.uncorrected.aggregate.total": "0",
    "remapped_rows.pending": "No",
    "remapped_rows.failure": "0",
}
SICK = {
    **HEALTHY,
    "uuid": "GPU-11111111-aaaa-bbbb-cccc-000000000002",
    "pci.bus_id": "00000009:01:00.0",
    "index": "1",
    "temperature.gpu": "[GPU is lost]",
    "temperature.memory": "N/A",
    "clocks.current.sm": "[Unknown Error]",
    "power.draw": "[N/A]",
    "utilization.gpu": "[N/A]",
    "clocks_throttle_reasons.active": "[Requested functionality has been deprecated]",
    "remapped_rows.pending": "Yes",
}


def smi_of(folder: Path, rows: list[dict[str, str]]) -> NvidiaSmi:
    program = folder / "nvidia-smi"
    program.write_text(PROGRAM.format(python=sys.executable, known=sorted(HEALTHY), rows=rows))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return NvidiaSmi(str(program))


class TestGpus:
    def test_gauges_have_the_names_and_units_of_the_report(self, folder: Path) -> None:
        read = smi_of(folder, [HEALTHY]).read()

        assert read == [
            {
                "gpu": "GPU-11111111-aaaa-bbbb-cccc-000000000001",
                "pci": "00000008:01:00.0",
                "index": 0,
                "model": "Some GPU 80GB",
                "temperature_c": 53,
                "memory_temperature_c": 59,
                "sm_clock_mhz": 1980,
                "power_w": 433.78,
                "utilization": 0.87,
                "memory_used_bytes": 11125 * 2**20,
                "clock_reasons": 0x24,
                "ecc_correctable": 3,
                "ecc_uncorrectable": 0,
                "remap_pending": 0,
                "remap_failed": 0,
            }
        ]

    def test_what_cannot_be_read_is_absent_never_zero(self, folder: Path) -> None:
        read = smi_of(folder, [HEALTHY, SICK]).read()

        assert read is not None
        assert read[1] == {
            "gpu": "GPU-11111111-aaaa-bbbb-cccc-000000000002",
            "pci": "00000009:01:00.0",
            "index": 1,
            "model": "Some GPU 80GB",
            "memory_used_bytes": 11125 * 2**20,
            "ecc_correctable": 3,
            "ecc_uncorrectable": 0,
            "remap_pending": 1,
            "remap_failed": 0,
        }

    def test_names_a_driver_does_not_know_are_learnt_once(self, folder: Path) -> None:
        smi = smi_of(folder, [HEALTHY])
        smi.read()
        unknown = set(smi.unknown)

        smi.read()

        assert "clocks_event_reasons.active" in unknown
        assert smi.unknown == unknown
        assert gpus_by_index(smi) == {"0": HEALTHY["uuid"]}

    def test_a_driver_that_does_not_answer_is_no_reading(self, folder: Path) -> None:
        program = folder / "nvidia-smi"
        program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2\nexit 9\n")
        program.chmod(0o700)

        assert NvidiaSmi(str(program)).read() is None
        assert NvidiaSmi(str(folder / "nowhere")).read() is None
        assert NvidiaSmi(None).read() is None

    def test_warnings_between_the_lines_are_no_gpus(self) -> None:
        text = "WARNING: infoROM is corrupted\nGPU-1, 0000:01:00.0, 0, A GPU, 45\n\n"

        assert gpus_read(text, [FIELDS[0]]) == [
            {"gpu": "GPU-1", "pci": "0000:01:00.0", "index": 0, "model": "A GPU", "temperature_c": 45}
        ]

    @pytest.mark.skipif(not SAMPLES.is_dir(), reason="the samples of real machines are not beside this checkout")
    @pytest.mark.parametrize("name", ["h100-mig_load", "h200_load", "l40s_load", "h200_idle"])
    def test_real_machines_are_read(self, name: str) -> None:
        import csv

        lines = (SAMPLES / f"{name}_query-gpu.csv").read_text().splitlines()
        head, *rows = csv.reader(lines, skipinitialspace=True)
        columns = {title.split(" [")[0]: index for index, title in enumerate(head)}
        fields = [(known, query) for known in FIELDS for query in known.queries if query in columns]
        text = "\n".join(
            ", ".join(row[columns[query]].rsplit(" ", 1)[0] if row[columns[query]].endswith((" W", " MHz", " MiB", " %"))
                      else row[columns[query]] for query in (*LABELS, *(query for _, query in fields)))
            for row in rows
        )  # fmt: skip

        gpus = gpus_read(text, [known for known, _ in fields])

        assert len(gpus) == len(rows) > 0
        for gpu in gpus:
            assert 20 < gpu["temperature_c"] < 95
            assert 20 < gpu["power_w"] < 800
            assert isinstance(gpu["clock_reasons"], int)
            assert "utilization" in gpu or "mig" in name
            assert gpu.get("remap_pending") == (None if "mig" in name else 0)


FIRST_STATS = """device proc mounted on /proc with fstype proc
device filer:/checkpoints mounted on /ckpt with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,proto=tcp
\tage:\t100
\tbytes:\t10 20 0 0 30 40 5 6
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 1 1 0
\t        READ: 100 100 0 20000 4000000 500 1000 1600 0
\t       WRITE: 200 203 0 8000000 32000 90000 4000 95000 0
device filer:/home mounted on /home with fstype nfs statvers=1.1
\tper-op statistics
\t        READ: 5 5 0 900 9000 5 10 15
"""
SECOND_STATS = FIRST_STATS.replace(
    "READ: 100 100 0 20000 4000000 500 1000 1600", "READ: 110 110 0 22000 4400000 520 1100 1740"
).replace("WRITE: 200 203 0 8000000 32000 90000 4000 95000", "WRITE: 300 305 0 12000000 48000 290000 6000 299000")


class TestNfs:
    def test_waits_are_means_of_what_happened_between_two_looks(self) -> None:
        gauges = nfs_gauges(mounts_read(FIRST_STATS), mounts_read(SECOND_STATS), 10.0)

        assert gauges[0] == {
            "mount": "/ckpt", "export": "filer:/checkpoints", "retransmits": 5,
            "read_ops": 10, "read_bytes_per_s": 40_000, "read_queue_ms": 2, "read_rtt_ms": 10, "read_execute_ms": 14,
            "write_ops": 100, "write_bytes_per_s": 400_000, "write_queue_ms": 2000, "write_rtt_ms": 20, "write_execute_ms": 2040,
        }  # fmt: skip

    def test_a_mount_without_requests_has_no_waits(self) -> None:
        gauges = nfs_gauges(mounts_read(FIRST_STATS), mounts_read(SECOND_STATS), 10.0)

        assert gauges[1] == {
            "mount": "/home", "export": "filer:/home", "retransmits": 0, "read_ops": 0, "read_bytes_per_s": 0,
        }  # fmt: skip

    def test_the_node_s_figures_are_the_slowest_mount_s(self) -> None:
        worst = nfs_worst(nfs_gauges(mounts_read(FIRST_STATS), mounts_read(SECOND_STATS), 10.0))

        assert worst["nfs_write_queue_ms"] == 2000
        assert worst["nfs_read_rtt_ms"] == 10
        assert worst["nfs_retransmits"] == 5

    def test_counters_that_start_again_are_no_reading(self) -> None:
        gauges = nfs_gauges(mounts_read(SECOND_STATS), mounts_read(FIRST_STATS), 10.0)

        assert set(gauges[0]) == {"mount", "export", "retransmits"}


@pytest.fixture
def machine(folder: Path) -> Path:
    """A machine's /proc and /sys, written by hand."""
    files = {
        "proc/loadavg": "12.5 10.0 9.0 3/1000 4242\n",
        "proc/meminfo": "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n",
        "proc/stat": "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 1 1 1 1\n",
        "proc/net/dev": "Inter-|\n face |\n lo: 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9\n"
        " eth0: 1000 5 2 0 0 0 0 0 2000 6 1 0 0 0 0 0\n docker0: 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7\n",
        "proc/self/mountstats": FIRST_STATS,
        "proc/self/mounts": "proc /proc proc rw 0 0\nfiler:/home /home nfs rw 0 0\n",
        "proc/sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555\n",
        "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error": "3\n",
        "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed": "1\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "sys/class/infiniband/mlx5_1/ports/1/rate": "10 Gb/sec (4X SDR)\n",
        "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


class TestHost:
    def test_levels_are_read_at_the_first_look(self, machine: Path) -> None:
        read = Host(str(machine)).read(0.0)

        assert {name: value for name, value in read.items() if name != "nfs"} == {
            "load1": 12.5,
            "memory_total_bytes": 1_024_000,
            "memory_available_bytes": 409_600,
            "swap_used_bytes": 30_720,
            "network_errors": 3,
            "ib_link_errors": 4,
            "ib_rate_gbit": 400.0,
            "boot_id": "11111111-2222-3333-4444-555555555555",
        }

    def test_rates_need_a_second_look(self, machine: Path) -> None:
        host = Host(str(machine))
        host.read(0.0)
        (machine / "proc/stat").write_text("cpu  160 0 120 720 100 0 0 0 0 0\n")
        text = (machine / "proc/net/dev").read_text()
        (machine / "proc/net/dev").write_text(text.replace("eth0: 1000", "eth0: 6000").replace("2000 6", "4000 6"))
        (machine / "proc/self/mountstats").write_text(SECOND_STATS)

        read = host.read(10.0)

        assert read["cpu_share"] == pytest.approx(0.8)
        assert read["network_receive_bytes_per_s"] == 500
        assert read["network_transmit_bytes_per_s"] == 200
        assert read["nfs_write_queue_ms"] == 2000
        assert [mount["mount"] for mount in read["nfs"]] == ["/ckpt", "/home"]

    def test_a_machine_that_shows_nothing_has_no_readings(self, folder: Path) -> None:
        assert Host(str(folder / "empty")).read(0.0) == {}

    def test_this_machine_is_read(self) -> None:
        host = Host()
        host.read(0.0)
        read = host.read(1.0)

        assert read["memory_total_bytes"] > read["memory_available_bytes"] > 0
        assert 0 < read["disk_free_share"] <= 1
        assert len(read["boot_id"]) == 36


class TestSender:
    def start(self, folder: Path, url: str, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "paceline.node", "--interval", "0.1", *arguments],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT / "client" / "src"),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PACELINE_URL": url,
                "PACELINE_TOKEN": "a-token",
                "PACELINE_NODE": "gpu-17",
                "PACELINE_SPOOL_DIR": str(folder / "spool"),
                **environ,
            },
        )

    def test_reports_the_node_with_a_number_of_its_own(self, folder: Path, server: RecordingServer) -> None:
        (folder / "gpus.json").write_text(json.dumps([{"gpu": "GPU-1", "temperature_c": 40}, {"gpu": "GPU-2"}]))

        process = self.start(folder, server.url, "--gpus-json", str(folder / "gpus.json"), PACELINE_CLUSTER="north")
        reports = eventually(lambda: len(server.accepted) >= 3 and list(server.accepted))
        process.terminate()
        status = process.wait(20)

        assert status == 0
        assert {report.path for report in reports} == {"/api/v1/nodes/north:gpu-17/reports"}
        assert [report.body["seq"] for report in reports][:3] == [1, 2, 3]
        assert len({report.body["boot"] for report in reports}) == 1
        assert reports[0].headers["Authorization"] == "Bearer a-token"
        assert reports[0].body["sender"] == "gpu-17"
        assert reports[0].body["gpus"] == [{"gpu": "GPU-1", "temperature_c": 40}, {"gpu": "GPU-2"}]
        assert reports[0].body["host"]["gpu_count"] == 2
        assert reports[1].body["host"]["memory_total_bytes"] > 0

    def test_without_a_reading_of_gpus_it_claims_none(self, folder: Path, server: RecordingServer) -> None:
        process = self.start(folder, server.url, "--gpus-json", str(folder / "not-written-yet.json"))
        reports = eventually(lambda: list(server.accepted))
        process.terminate()
        process.wait(20)

        assert "gpus" not in reports[0].body
        assert "gpu_count" not in reports[0].body["host"]

    def test_it_delivers_what_dead_ranks_left_behind(self, folder: Path, server: RecordingServer) -> None:
        from paceline.settings import spool_folder

        server.runs.add("a-run")
        spool = Spool(spool_folder(str(folder / "spool"), server.url), max_bytes=1_000_000)
        target = Target("attempt", "a-run", key="k1", world_size=8)
        spool.write(Entry(target, "dead", 5, "reports", b'{"sender": "gpu-17", "boot": "dead", "seq": 5}'))

        process = self.start(folder, server.url)
        left = eventually(server.reports)
        process.terminate()
        process.wait(20)

        assert left == [{"sender": "gpu-17", "boot": "dead", "seq": 5}]

    def test_without_an_address_it_says_so(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        status = self.start(folder, "").wait(20)

        assert status == 2
        assert "PACELINE_URL is not set" in capfd.readouterr().err

    def test_an_interval_that_is_no_number_is_said_in_a_sentence(self) -> None:
        said = settings_read([], {"PACELINE_URL": "http://paceline", "PACELINE_NODE_INTERVAL_S": "soon"})

        assert said == "PACELINE_NODE_INTERVAL_S is 'soon', which is no number of seconds"
