"""A cluster's own certificate authority, certificates and kubeconfigs, made with the `openssl` command.

Every part of the cluster has an identity of its own and verifies the others; nothing skips verification.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError

DAYS = "3650"
CONFIG = "[req]\ndistinguished_name = name\n[name]\n"  # ours alone: the machine's openssl.cnf may add extensions


@dataclass(frozen=True)
class Identity:
    """A certificate to make: who it is for, its groups, and the names under which it serves, if it does."""

    name: str
    common_name: str
    organization: str = ""
    alternative_names: Sequence[str] = ()

    @property
    def subject(self) -> str:
        return (f"/O={self.organization}" if self.organization else "") + f"/CN={self.common_name}"


class Authority:
    """The authority of one cluster, in one folder: `ca.crt`, `<name>.crt`, `<name>.key`, `<name>.kubeconfig`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._config = folder / "openssl.cnf"
        self._config.write_text(CONFIG)

    @classmethod
    def new(cls, folder: Path) -> Authority:
        """Make one."""
        made = cls(folder)
        made._request(
            "ca", "/CN=omni-ca", ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"]
        )
        return made

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def issue(self, identity: Identity) -> None:
        """Make a key and a certificate signed by this authority."""
        extensions = ["keyUsage=critical,digitalSignature", "extendedKeyUsage=serverAuth,clientAuth"]
        extensions.append("authorityKeyIdentifier=keyid:always")  # Python 3.13 and later insist on it
        if identity.alternative_names:
            extensions.append(f"subjectAltName={','.join(identity.alternative_names)}")
        signer = ["-CA", str(self.certificate("ca")), "-CAkey", str(self.key("ca"))]
        self._request(identity.name, identity.subject, extensions, signer)

    def issue_signing_keys(self, name: str) -> None:
        """Make `<name>.key` and `<name>.pub`, with which service account tokens are signed and verified."""
        curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        _openssl("genpkey", *curve, "-out", str(self.key(name)))
        _openssl("pkey", "-in", str(self.key(name)), "-pubout", "-out", str(self.folder / f"{name}.pub"))

    def kubeconfig(self, name: str, server: str, cluster: str) -> str:
        """A kubeconfig that holds all it needs, so that it may be copied anywhere. JSON, which is YAML."""
        user = {"client-certificate-data": _data(self.certificate(name)), "client-key-data": _data(self.key(name))}
        authority = {"server": server, "certificate-authority-data": _data(self.certificate("ca"))}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": cluster, "cluster": authority}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": name}}],
            "current-context": cluster,
        }
        return json.dumps(document, indent=1) + "\n"

    def write_kubeconfig(self, name: str, server: str, cluster: str) -> Path:
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(self.kubeconfig(name, server, cluster))
        path.chmod(0o600)
        return path

    def _request(self, name: str, subject: str, extensions: Sequence[str], signer: Sequence[str] = ()) -> None:
        new_key = [
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            str(self.key(name)),
        ]
        command = ["req", "-x509", "-config", str(self._config), "-days", DAYS, "-subj", subject, *new_key, *signer]
        added = [word for each in ("subjectKeyIdentifier=hash", *extensions) for word in ("-addext", each)]
        _openssl(*command, *added, "-out", str(self.certificate(name)))


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _openssl(*arguments: str) -> None:
    try:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise ClusterError("the openssl command is missing", "install openssl 3 (apt-get install openssl)") from None
    if done.returncode:
        raise ClusterError(
            f"openssl {arguments[0]} failed", "openssl 3.0 or later is needed", done.stderr.strip().splitlines()[-5:]
        )
