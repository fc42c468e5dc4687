"""How pip inside a build reaches packages the way pip on this machine does, without a trace of it in the image.

The machine's pip configuration (files and `PIP_*` variables), its certificates and its local wheel folders are mounted
while the build runs, as a pip.conf; a Dockerfile that declares `ARG PIP_INDEX_URL` or the like, for tools that read no
pip.conf, gets those as build arguments. Proxies come from the environment, which buildah passes on by itself.
"""

from __future__ import annotations

import configparser
import io
import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MOUNTED = Path("/run/omni-build")
CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
CERTIFICATE_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
COPIED = ("index-url", "extra-index-url", "trusted-host", "timeout", "default-timeout", "retries", "no-index", "proxy")


@dataclass(frozen=True)
class Access:
    """What to mount, `{path on this machine: path in the build}`, and pip's settings as `PIP_*` variables."""

    mounts: Mapping[Path, Path]
    variables: Mapping[str, str]

    def options(self, declared: Collection[str]) -> list[str]:
        """As options of `buildah build`, for a Dockerfile that declares these build arguments."""
        volumes = [f"--volume={source}:{target}:ro" for source, target in self.mounts.items()]
        wanted = {name: value for name, value in self.variables.items() if name in declared}
        return volumes + [f"--build-arg={name}={value}" for name, value in sorted(wanted.items())]


def prepare(folder: Path) -> Access:
    """Write the configuration for a build into `folder`, which must live as long as the build."""
    settings = machine_settings()
    wheels = [Path(each) for each in re.split(r"[\s,]+", settings.get("find-links", "")) if Path(each).is_dir()]
    certificates = next((Path(each) for each in _certificates() if Path(each).is_file()), None)
    mounts = {folder: MOUNTED}
    mounts |= {path: MOUNTED / f"wheels-{number}" for number, path in enumerate(wheels)}
    for number in range(len(wheels)):
        (folder / f"wheels-{number}").mkdir()
    if certificates:
        (folder / "certificates.pem").write_bytes(certificates.read_bytes())
    inside = within(settings, [str(MOUNTED / f"wheels-{number}") for number in range(len(wheels))], bool(certificates))
    (folder / "pip.conf").write_text(configuration(inside))
    variables = {f"PIP_{name.upper().replace('-', '_')}": value.replace("\n", " ") for name, value in inside.items()}
    return Access({**mounts, folder / "pip.conf": Path("/etc/pip.conf")}, variables)


def within(settings: Mapping[str, str], wheels: Sequence[str], certificates: bool) -> dict[str, str]:
    """PURE: the settings as they are within the build, where wheels and certificates lie elsewhere."""
    inside = {name: settings[name] for name in COPIED if name in settings}
    if wheels:
        inside["find-links"] = "\n".join(wheels)
    if certificates:
        inside["cert"] = str(MOUNTED / "certificates.pem")
    return inside


def configuration(settings: Mapping[str, str]) -> str:
    """PURE: settings as a pip.conf."""
    parser = configparser.RawConfigParser()
    parser["global"] = {name: value.replace("\n", "\n ") for name, value in settings.items()}
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()


def machine_settings() -> dict[str, str]:
    """The settings that pip on this machine would use, a later source winning, as pip itself lists them."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    if listed.returncode:  # an environment without pip: its variables still count
        listed = subprocess.run(["pip3", "config", "list"], capture_output=True, text=True)
    settings = parsed(listed.stdout if listed.returncode == 0 else "")
    from_environment = {
        name[4:].lower().replace("_", "-"): value for name, value in os.environ.items() if name[:4] == "PIP_"
    }
    return {**settings, **from_environment}


def parsed(listing: str) -> dict[str, str]:
    """PURE: `pip config list` as a mapping; a value holds Python escapes."""
    found = {}
    for line in listing.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.split(".")[0] in ("global", "install", ":env:"):
            found[name.rpartition(".")[2]] = value.strip("'\"").replace("\\n", "\n")
    return found


def _certificates() -> list[str]:
    return [os.environ[name] for name in CERTIFICATE_VARIABLES if os.environ.get(name)] + list(CERTIFICATES)
