"""The addresses of a node, and the cable between the machine and the node's network namespace.

A node has a /24 for itself and its pods, and a /24 for Services, chosen so that they overlap no route that the machine
has. The machine holds one end of a veth pair and routes both ranges through it: from the machine, the API server, every
pod and every Service answer directly.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError

POD_RANGES = ipaddress.IPv4Network("10.244.0.0/16")
SERVICE_RANGES = ipaddress.IPv4Network("10.96.0.0/16")
MACHINE_LOCK = Path("/run/lock/omni-cluster-network.lock")  # held while a range is chosen and its cable laid
LINK_IN_NODE = "eth0"


@dataclass(frozen=True)
class Addresses:
    """Everything that follows from the number of the range that a node was given (0 to 255)."""

    number: int

    @property
    def pods(self) -> ipaddress.IPv4Network:
        return _nth(POD_RANGES, self.number)

    @property
    def services(self) -> ipaddress.IPv4Network:
        return _nth(SERVICE_RANGES, self.number)

    @property
    def node(self) -> str:
        """The node, and its pods' gateway."""
        return str(self.pods[1])

    @property
    def machine(self) -> str:
        """The machine's end of the cable."""
        return str(self.pods[254])

    @property
    def first_pod(self) -> str:
        return str(self.pods[10])

    @property
    def last_pod(self) -> str:
        return str(self.pods[250])

    @property
    def kubernetes_service(self) -> str:
        return str(self.services[1])

    @property
    def dns_service(self) -> str:
        return str(self.services[10])


def choose(taken: Iterable[str]) -> Addresses:
    """The first number whose two ranges overlap none of the networks `taken`, such as `10.0.0.0/8`.

    Default routes are no obstacle. Raises ClusterError when all 256 are taken.
    """
    networks = [ipaddress.ip_network(each, strict=False) for each in taken]
    obstacles = [each for each in networks if isinstance(each, ipaddress.IPv4Network) and each.prefixlen > 0]
    for number in range(256):
        addresses = Addresses(number)
        if not any(each.overlaps(addresses.pods) or each.overlaps(addresses.services) for each in obstacles):
            return addresses
    raise ClusterError(
        f"the machine's routes leave no free /24 in {POD_RANGES} and {SERVICE_RANGES}",
        "take clusters down that are not needed, or look at `ip route` for a wide route, such as a VPN's",
    )


def taken_networks() -> list[str]:
    """The destinations of every route of this machine."""
    routes = json.loads(_ip("-json", "-4", "route", "show", "table", "all") or "[]")
    return [
        each["dst"] for each in routes if each.get("dst") not in (None, "default") and each.get("type") != "broadcast"
    ]


def lay_cable(link: str, process: int, addresses: Addresses, services: bool = True) -> None:
    """Connect the machine and the network namespace of `process`. The pair vanishes with that namespace.

    `services`: the machine reaches Services through this node.
    """
    _ip("link", "add", link, "type", "veth", "peer", "name", LINK_IN_NODE, "netns", str(process))
    _ip("address", "add", f"{addresses.machine}/32", "dev", link)
    _ip("link", "set", link, "up")
    _ip("route", "add", f"{addresses.node}/32", "dev", link, "src", addresses.machine)
    for each in (addresses.pods, addresses.services) if services else (addresses.pods,):
        _ip("route", "add", str(each), "via", addresses.node, "dev", link, "src", addresses.machine, "onlink")
    _run_in(process, _inside(addresses))


End = tuple[str, int, Addresses]
"""One end of a cable between nodes: the device's name there, a process of the node, and the node's addresses."""


def connect(one: End, other: End) -> None:
    """A cable between two nodes, over which each reaches the other and its pods. It vanishes with either of them."""
    (link, process, _), (peer_link, peer_process, _) = one, other
    ends = ("netns", str(process), "type", "veth", "peer", "name", peer_link, "netns", str(peer_process))
    _ip("link", "add", link, *ends)
    for (device, inside, own), (_, _, peer) in ((one, other), (other, one)):
        to_peer = ("dev", device, "src", own.node)
        _run_in(
            inside,
            (
                ("ip", "link", "set", device, "up"),
                ("ip", "route", "add", f"{peer.node}/32", *to_peer),
                ("ip", "route", "add", str(peer.pods), "via", peer.node, *to_peer, "onlink"),
            ),
        )


def _run_in(process: int, commands: Sequence[Sequence[str]]) -> None:
    """Run commands in the network namespace of a process."""
    for command in commands:
        done = subprocess.run(["nsenter", f"--target={process}", "--net", *command], capture_output=True, text=True)
        if done.returncode:
            raise ClusterError(
                f"`{' '.join(command)}` failed in the node's network namespace",
                "check that the kernel has veth, network namespaces and IPv4 forwarding",
                done.stderr.splitlines(),
            )


def _inside(addresses: Addresses) -> Sequence[Sequence[str]]:
    ip = "ip"
    return (
        (ip, "link", "set", "lo", "up"),
        (ip, "address", "add", f"{addresses.node}/32", "dev", LINK_IN_NODE),
        (ip, "link", "set", LINK_IN_NODE, "up"),
        (ip, "route", "add", f"{addresses.machine}/32", "dev", LINK_IN_NODE, "src", addresses.node),
        (ip, "route", "add", "default", "via", addresses.machine, "dev", LINK_IN_NODE, "src", addresses.node),
        ("sysctl", "-q", "-w", "net.ipv4.ip_forward=1"),
    )


def cut_cable(link: str) -> None:
    """Remove the machine's end, if it is still there."""
    if Path(f"/sys/class/net/{link}").exists():
        subprocess.run(["ip", "link", "delete", link], capture_output=True)


def _nth(ranges: ipaddress.IPv4Network, number: int) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network((int(ranges.network_address) + number * 256, 24))


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(
            f"`ip {' '.join(arguments)}` failed",
            "run as root on a kernel with veth and network namespaces (in a container: CAP_NET_ADMIN, CAP_SYS_ADMIN)",
            done.stderr.splitlines(),
        )
    return done.stdout
