"""What the commands that look at a cluster share: which cluster and namespace, and errors of one line.

The Kubernetes client is imported only when one of them runs, since it takes longer to load than a plan does.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import re
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from omni_operator.cli.documents import BadInput, Place

if TYPE_CHECKING:
    from omni_operator.kube.client import Client, KubeError

T = TypeVar("T")

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class Cluster:
    """A cluster, and the namespace that the user means."""

    client: Client
    namespace: str
    server: str


def arguments(parser: argparse.ArgumentParser) -> None:
    """Which cluster, as kubectl's own flags say it."""
    parser.add_argument("-n", "--namespace", help="namespace (that of the context)")
    parser.add_argument("--context", help="context of the kubeconfig (the current one)")
    parser.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig ($KUBECONFIG, or ~/.kube/config)")


def flags(arguments: argparse.Namespace) -> str:
    """The flags that were given, for commands that a user copies."""
    given = {"-n": arguments.namespace, "--context": arguments.context, "--kubeconfig": arguments.kubeconfig}
    return "".join(f" {flag} {shlex.quote(value)}" for flag, value in given.items() if value)


def run_in_cluster(arguments: argparse.Namespace, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Runs `work` with a connection. Raises BadInput for whatever the cluster or its configuration refuses."""
    gc.enable()  # The command line switches it off, for commands that are over at once; these may run for hours.
    return asyncio.run(_connected(arguments, work))


async def _connected(arguments: argparse.Namespace, work: Callable[[Cluster], Awaitable[T]]) -> T:
    from omni_operator.kube.client import KubeError
    from omni_operator.kube.kubeconfig import connect_as_user

    if arguments.namespace is not None:
        check_name(arguments.namespace, "namespace")
    try:
        connection = await connect_as_user(arguments.kubeconfig, arguments.context)
    except KubeError as error:
        raise BadInput(error.message, Place("no cluster")) from None
    async with connection.client as client:
        cluster = Cluster(client, arguments.namespace or connection.namespace, connection.server)
        try:
            return await work(cluster)
        except KubeError as error:
            raise refusal(error, cluster) from None


def check_name(text: str, what: str) -> None:
    """Raises BadInput for a text that no object of Kubernetes can have as its name."""
    if not _NAME.fullmatch(text):
        raise BadInput("is not a name of Kubernetes: small letters, digits, - and . only", Place(f"{what} {text!r}"))


def refusal(error: KubeError, cluster: Cluster) -> BadInput:
    """A failed call in words for people."""
    from omni_operator.cli.live_parse import clean

    message = clean(error.message)
    if error.reason == "NotJSON":  # A proxy's or a login page, say.
        return BadInput("does not answer as an API server of Kubernetes", Place(f"cluster {cluster.server}"))
    if error.status == 0:
        return BadInput(f"cannot be reached: {message}", Place(f"cluster {cluster.server}"))
    if error.status == 401:
        return BadInput("does not accept these credentials (401)", Place(f"cluster {cluster.server}"))
    if error.status == 403:
        return BadInput(message or "not allowed", Place("forbidden"))
    if error.status == 404 and "omnimodel.io" in error.call:
        return BadInput("has no kind OmniModel; install it with the chart", Place(f"cluster {cluster.server}"))
    return BadInput(f"{message or error.reason} ({error.status})", Place(f"cluster {cluster.server}"))
