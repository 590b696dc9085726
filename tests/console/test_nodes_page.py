"""Which cluster the page of nodes opens on."""

from datetime import datetime

import pytest

from apps.console.selectors.nodes import nodes_page
from apps.fleet.services import cluster_ensure, nodes_ensure

pytestmark = pytest.mark.django_db


class TestNodesPage:
    def test_opens_on_the_cluster_with_most_nodes(self, now: datetime) -> None:
        for name, nodes in (("main", ["vm"]), ("practice", ["p-1", "p-2"]), ("zero", [])):
            nodes_ensure(cluster_id=cluster_ensure(name=name, now=now), names=nodes, now=now)

        opened, named = nodes_page(cluster_name="", now=now), nodes_page(cluster_name="main", now=now)

        assert opened.cluster is not None
        assert named.cluster is not None
        assert (opened.cluster.name, named.cluster.name) == ("practice", "main")

    def test_opens_without_any_cluster(self, now: datetime) -> None:
        assert nodes_page(cluster_name="", now=now).cluster is None
