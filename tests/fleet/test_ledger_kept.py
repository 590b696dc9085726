"""The ledger cannot be emptied, also not by the role that writes it."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.db import DatabaseError, connection, transaction

from apps.fleet.models import Exclusion
from apps.fleet.services import exclusion_open, nodes_ensure


@pytest.mark.django_db
@pytest.mark.parametrize(
    "statement", ["TRUNCATE fleet_exclusion CASCADE", "TRUNCATE fleet_ledgernote", "TRUNCATE fleet_node CASCADE"]
)
def test_the_database_refuses_to_empty_it(cluster: int, now: datetime, statement: str) -> None:
    node = nodes_ensure(cluster_id=cluster, names=["trn001"], now=now)["trn001"]
    exclusion_open(node_id=node, reason="Throttles on heat", by_name="somebody", origin="OURS", source="API", now=now)

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL paceline.truncate = 'off'")  # as in every database but those of tests
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            cursor.execute(statement)

    assert Exclusion.objects.count() == 1
