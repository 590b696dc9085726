"""What the documents name exists, and what exists is in the documents."""

import re
import subprocess
from pathlib import Path

import pytest
from django.core.management import get_commands
from django.urls import Resolver404, resolve

ROOT = Path(__file__).resolve().parents[2]
TRACKED = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.split()
DOCUMENTS = [ROOT / name for name in TRACKED]
ROOMS = sorted(path.parent for path in (ROOT / "apps").glob("*/apps.py"))


def is_answered(address: str) -> bool:
    """Return whether some view answers an address."""
    try:
        resolve(address)
    except Resolver404:
        return False
    return True


def environment_names(*folders: str) -> set[str]:
    """The variables that programs read, as far as their names stand in quotes."""
    found: set[str] = set()
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r"""["'](PACELINE_[A-Z_]+)["']""", path.read_text(encoding="utf-8")))
    return found


class TestDocuments:
    def test_deploy_names_every_variable_of_the_server(self) -> None:
        text = (ROOT / "docs/deploy.md").read_text(encoding="utf-8") + (ROOT / "client/README.md").read_text(
            encoding="utf-8"
        )
        internal = {"PACELINE_LIMITS", "PACELINE_SHARED_DIR"}

        missing = {
            name for name in environment_names("apps/config", "apps/console", "apps/telemetry") if name not in text
        }

        assert missing - internal == set()

    def test_some_document_names_every_variable(self) -> None:
        text = "".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
        internal = {"PACELINE_LIMITS"}  # a setting of ours that happens to begin like a variable

        assert {name for name in environment_names("apps", "client/src") if name not in text} - internal == set()

    @pytest.mark.parametrize("document", DOCUMENTS, ids=TRACKED)
    def test_names_only_addresses_of_rest_that_exist(self, document: Path) -> None:
        named = re.findall(r"/(api/v1/[\w/{}.-]*[\w}])", document.read_text(encoding="utf-8"))

        assert [address for address in named if not is_answered("/" + re.sub(r"\{\w+\}", "1", address))] == []

    def test_client_names_every_variable_of_the_client(self) -> None:
        text = (ROOT / "client/README.md").read_text(encoding="utf-8")

        assert {name for name in environment_names("client/src") if name not in text} == set()

    @pytest.mark.parametrize("document", DOCUMENTS, ids=TRACKED)
    def test_names_only_commands_that_exist(self, document: Path) -> None:
        named = set(re.findall(r"manage\.py (\w+)", document.read_text(encoding="utf-8")))

        assert named <= set(get_commands())

    @pytest.mark.parametrize("document", DOCUMENTS, ids=TRACKED)
    def test_names_only_make_targets_that_exist(self, document: Path) -> None:
        targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
        named = set(re.findall(r"`make (\w+)`", document.read_text(encoding="utf-8")))

        assert named <= targets

    @pytest.mark.parametrize("document", DOCUMENTS, ids=TRACKED)
    def test_links_only_to_files_that_exist(self, document: Path) -> None:
        links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text(encoding="utf-8"))

        assert [link for link in links if not (document.parent / link).exists()] == []

    @pytest.mark.parametrize("room", ROOMS, ids=[room.name for room in ROOMS])
    def test_every_room_has_a_page_of_its_own(self, room: Path) -> None:
        assert (room / "README.md").exists() or room.name == "config"
