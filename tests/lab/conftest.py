"""A Ray cluster for the tests of the queue."""

import pytest

from tests.forked import environment


@pytest.fixture
def workers_find_tests(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])


@pytest.fixture
def two_nodes(workers_find_tests):
    """A Ray cluster of two nodes on this machine, one processor each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "wait": False})
    cluster.add_node(num_cpus=1, wait=False)
    cluster.wait_for_nodes(timeout=180)
    yield cluster
    cluster.shutdown()
