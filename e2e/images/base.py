"""The base image: Debian 12 with Python 3.11, made on the spot by mmdebstrap where no registry can be reached."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Progress
from e2e.cluster.requirements import install, missing_commands

SUITE = "bookworm"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*")
COMMANDS = {"mmdebstrap": "mmdebstrap"}
EPOCH = "1700000000"  # of files that the bootstrap dates itself


def base_key() -> str:
    """Changes with what is installed, how, and from where."""
    return hashlib.sha256(repr(_command("root.tar")).encode()).hexdigest()[:16]


def bootstrap(tar: Path, progress: Progress) -> None:
    """Write the root file system as a tar."""
    install(set(missing_commands(COMMANDS).values()), progress)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    with progress.step(f"bootstrapping Debian {SUITE} with {', '.join(PACKAGES)}"):
        done = subprocess.run(_command(str(tar)), capture_output=True, text=True, env=environment)
    if done.returncode:
        raise ClusterError(
            "mmdebstrap could not make the base image",
            "check this machine's package sources (apt-get update), or build on a base of your own (BASE_IMAGE)",
            done.stderr.splitlines()[-8:],
        )


def _command(tar: str) -> list[str]:
    return [
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--format=tar",
        f"--include={','.join(PACKAGES)}",
        *(f"--dpkgopt=path-exclude={each}" for each in LEFT_OUT),
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        "--dpkgopt=force-unsafe-io",  # an interrupted bootstrap is thrown away, so nothing needs to reach the disk
        "--aptopt=Apt::Install-Recommends false",
        SUITE,
        tar,
        *_sources(),
    ]


def _sources() -> list[str]:
    """This machine's own sources if they are of the suite, since they are known to work here; else mmdebstrap's own."""
    if SOURCES.exists() and f"Suites: {SUITE}" in SOURCES.read_text():
        return [str(SOURCES)]
    return []
