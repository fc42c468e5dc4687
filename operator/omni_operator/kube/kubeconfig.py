"""A client for a person at a terminal: the cluster, the user and the namespace that kubectl would take.

In kubectl's order: what the flags say, then KUBECONFIG (several files are merged), then ~/.kube/config, and only where
there is none of these, the pod's service account.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import load_incluster_config, load_kube_config
from kubernetes.aio.config.config_exception import ConfigException

from omni_operator.kube.client import Client, KubeError

DEFAULT_FILE = "~/.kube/config"
DEFAULT_NAMESPACE = "default"
SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Connection:
    """A cluster as a user sees it."""

    client: Client
    server: str
    """URL of the API server."""
    namespace: str
    """Of the context, or `default`."""


async def connect_as_user(kubeconfig: str | None = None, context: str | None = None) -> Connection:
    """Raises KubeError, with status 0 and no call made, where the configuration names no cluster that can be used."""
    files = kubeconfig or os.environ.get("KUBECONFIG") or _default_file()
    configuration = Configuration()
    try:
        if _exist(files):
            namespace = await _from_files(configuration, files, context)
        elif kubeconfig or context or not _in_cluster(configuration):
            raise KubeError("connect", 0, "NoConfiguration", f"no kubeconfig at {files}")
        else:
            namespace = _own_namespace()
        return Connection(Client(configuration), configuration.host, namespace or DEFAULT_NAMESPACE)
    except (ConfigException, yaml.YAMLError, OSError, ValueError) as error:
        words = " ".join(str(error).split()).removeprefix("Invalid kube-config file. ")
        raise KubeError("connect", 0, "NoConfiguration", f"{files}: {words}") from error
    except (KeyError, TypeError, AttributeError) as error:
        # The client's reader checks little: a file of the wrong shape ends in whatever Python raises.
        raise KubeError("connect", 0, "NoConfiguration", f"{files}: is not a usable kubeconfig") from error


async def _from_files(configuration: Configuration, files: str, context: str | None) -> str:
    """Fills the configuration; the context's namespace comes back."""
    loader = await load_kube_config(files, context, configuration, persist_config=False)
    current: Any = loader.current_context["context"]
    return str(current.get("namespace") or "")


def _in_cluster(configuration: Configuration) -> bool:
    try:
        load_incluster_config(client_configuration=configuration)
    except ConfigException:
        return False
    return True


def _default_file() -> str:
    return os.path.expanduser(DEFAULT_FILE)


def _exist(files: str) -> bool:
    return any(Path(file).is_file() for file in files.split(os.pathsep) if file)


def _own_namespace() -> str:
    return SERVICE_ACCOUNT_NAMESPACE.read_text().strip()
