"""A node's addresses overlap nothing that the machine routes."""

from __future__ import annotations

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.network import Addresses, choose


def test_the_first_range_is_taken_when_nothing_is_in_the_way() -> None:
    addresses = choose(["default", "127.0.0.0/8"][1:])
    assert (addresses.node, addresses.machine) == ("10.244.0.1", "10.244.0.254")
    assert (addresses.kubernetes_service, addresses.dns_service) == ("10.96.0.1", "10.96.0.10")
    assert (addresses.first_pod, addresses.last_pod) == ("10.244.0.10", "10.244.0.250")


def test_a_running_cluster_moves_the_next_one_on() -> None:
    assert choose(["10.244.0.0/24", "10.244.0.1", "10.96.0.0/24"]) == Addresses(1)


def test_a_taken_service_range_moves_it_on_too() -> None:
    assert choose(["10.96.0.0/23"]) == Addresses(2)


def test_a_default_route_is_no_obstacle_and_a_wide_one_is() -> None:
    assert choose(["0.0.0.0/0", "::/0"]) == Addresses(0)
    with pytest.raises(ClusterError, match="no free /24"):
        choose(["10.0.0.0/8"])
