"""The launcher in a run's settings: read strictly, since it says what is executed."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from apps.common.errors import BadRequest
from apps.runs.launcher import launcher_checked, launcher_of, launcher_usable

LOCAL = {"kind": "LOCAL", "command": ["python", "train.py", "--note", "a; rm -rf ~"]}


class TestLauncherChecked:
    def test_it_is_stored_as_given_with_its_defaults_and_read_again(self) -> None:
        stored, ignored = launcher_checked({**LOCAL, "nodes": ["b", "a", "b"], "enviroment": {}})

        setting = launcher_of(stored)
        assert stored == {**LOCAL, "nodes": ["b", "a"], "stop_grace_s": 30.0}
        assert ignored == ["launcher.enviroment"]
        assert setting is not None
        assert setting.command == tuple(LOCAL["command"])

    def test_its_limits_are_kept(self) -> None:
        limits = {"nice": 10, "memory_mib": 4096, "open_files": 1024, "core_mib": 0, "output_mib": 8}

        stored, _ = launcher_checked({**LOCAL, "limits": limits})

        assert stored["limits"] == limits
        assert (setting := launcher_of(stored)) is not None
        assert setting.limits == limits

    def test_an_empty_one_takes_it_away(self) -> None:
        assert launcher_checked({}) == ({}, [])
        assert launcher_of({}) is None

    @pytest.mark.parametrize(
        "wrong",
        [
            {"kind": "SHELL"},
            {"kind": "LOCAL"},
            {"kind": "LOCAL", "command": "python train.py"},
            {"kind": "LOCAL", "command": []},
            {"kind": "LOCAL", "command": [""]},
            {"kind": "LOCAL", "command": ["a", 1]},
            {"kind": "LOCAL", "command": ["a\0b"]},
            {**LOCAL, "directory": "train"},
            {"kind": "SLURM", "directory": "train"},
            {"kind": "SLURM", "script": "srun python train.py"},
            {**LOCAL, "environment": {"A": 1}},
            {**LOCAL, "environment": {"A=B": "x"}},
            {**LOCAL, "environment": ["A"]},
            {**LOCAL, "nodes": ["a,b"]},
            {**LOCAL, "nodes": "a"},
            {**LOCAL, "stop_grace_s": -1},
            {**LOCAL, "stop_grace_s": True},
            {**LOCAL, "zone": "Mars/Olympus"},
            {**LOCAL, "limits": {"memory": 4}},
            {**LOCAL, "limits": {"nice": -5}},
            {**LOCAL, "limits": {"memory_mib": 1}},
            {**LOCAL, "limits": {"open_files": True}},
            {**LOCAL, "limits": {"output_mib": "64"}},
            {**LOCAL, "limits": [1]},
            {"kind": "WEBHOOK", "url": "http://host/", "limits": {"nice": 5}},
            {"kind": "WEBHOOK"},
            {"kind": "WEBHOOK", "url": "file:///etc/passwd"},
            {"kind": "WEBHOOK", "url": "http://"},
            {"kind": "WEBHOOK", "url": "http://user:word@host/"},
        ],
    )
    def test_what_cannot_be_used_is_refused_with_the_field_s_name(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(BadRequest, match=r"^launcher\."):
            launcher_checked(wrong)
        assert launcher_usable(wrong) is None


class TestPut:
    def test_only_an_admin_sets_it_and_a_wrong_one_changes_nothing(self, run: Any, api: Callable[..., Client]) -> None:
        path = "/api/v1/runs/dense-7b"

        refused = api("report", "operate").put(path, {"launcher": LOCAL})
        wrong = api("report", "admin").put(path, {"launcher": {"kind": "LOCAL", "command": "train"}})
        taken = api("report", "admin").put(path, {"launcher": {**LOCAL, "colour": 1}})

        assert (refused.status_code, wrong.status_code, taken.status_code) == (403, 400, 200)
        assert taken.json()["ignored"] == ["launcher.colour"]
        assert taken.json()["launcher"]["command"] == LOCAL["command"]
