"""Every test that a document calls a proof exists under its name, in the class that is named with it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROOF = re.compile(r"`((?:tests/[\w/]+\.py)?(?:::\w+)+)`")
DOCUMENTS = ("docs/threat_model.md", "docs/reliability.md")


def proofs(document: str) -> list[str]:
    """Return what a document names as its proofs; `::test_name` belongs to the file that was named last."""
    found, path, room = [], "", ""
    for name in PROOF.findall((ROOT / document).read_text(encoding="utf-8")):
        head, *parts = name.split("::")
        path, room = (head, "") if head else (path, room)
        room = parts[0] if len(parts) == 2 else room
        found.append("::".join([path, *([room] if len(parts) == 2 else []), parts[-1]]))
    return found


def names_of(path: Path) -> set[str]:
    """Return `test` and `Class::test` of every test in a file."""
    tree, found = ast.parse(path.read_text(encoding="utf-8")), set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inside = [one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {*inside, *(f"{node.name}::{name}" for name in inside)}
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_proof_exists(document: str) -> None:
    missing = [
        proof
        for proof in proofs(document)
        if not (ROOT / (path := proof.partition("::")[0])).is_file()
        or proof.partition("::")[2] not in names_of(ROOT / path)
    ]

    assert missing == []
    assert proofs(document)


def test_each_claim_about_access_names_one() -> None:
    text = (ROOT / "docs/threat_model.md").read_text(encoding="utf-8")
    defended = text.partition("## What each may do")[2].partition("## What is not defended")[0]

    claims = [line for line in defended.splitlines() if line.startswith("- ")]

    assert [claim for claim in claims if not PROOF.search(claim)] == []
    assert len(claims) > 15
