"""What a Dockerfile's build depends on: the files that it copies, gathered into a clean folder, and their hash.

A file counts if the Dockerfile copies it and git would (tracked, or new and not ignored), so that no cache, no virtual
environment and no byte code slips into an image or changes its hash.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from e2e.cluster.errors import ClusterError

SKIPPED_FOLDERS = ("__pycache__", "node_modules")


@dataclass(frozen=True)
class Context:
    """A Dockerfile and the files that it copies, as paths relative to the repository."""

    repository: Path
    dockerfile: str
    files: tuple[str, ...]

    def key(self, **others: str) -> str:
        """A hash of all that shapes the image: these files, and `others`, such as the base image's digest."""
        digest = hashlib.sha256(json.dumps(others, sort_keys=True).encode())
        for name in (self.dockerfile, *self.files):
            path = self.repository / name
            executable = bool(path.stat().st_mode & 0o100)
            digest.update(f"{name}\0{executable}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
        return digest.hexdigest()[:16]

    def gather(self, folder: Path) -> None:
        """Copy the files into an empty folder, with plain modes and one date, so that equal files make equal layers."""
        for name in (self.dockerfile, *self.files):
            source, target = self.repository / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
            os.utime(target, (0, 0))
        for directory in (each for each in folder.rglob("*") if each.is_dir()):
            directory.chmod(0o755)
            os.utime(directory, (0, 0))


def context(repository: Path, dockerfile: str, arguments: Mapping[str, str]) -> Context:
    """The context of a build with these build arguments. Raises ClusterError if a copied file is missing."""
    path = repository / dockerfile
    if not path.exists():
        raise ClusterError(f"{dockerfile} does not exist", "build from a complete checkout of the repository")
    known = known_files(repository)
    files: set[str] = set()
    for source in copied(path.read_text(), arguments):
        found = matching(source, known)
        if not found:
            raise ClusterError(
                f"{dockerfile} copies {source}, which is not there", "add it, or check that git does not ignore it"
            )
        files.update(found)
    return Context(repository, dockerfile, tuple(sorted(files)))


def copied(dockerfile: str, arguments: Mapping[str, str]) -> list[str]:
    """PURE: the sources of every COPY and ADD from the context, with build arguments filled in."""
    values = dict(arguments)
    sources: list[str] = []
    for instruction, rest in _instructions(dockerfile):
        if instruction == "ARG" and "=" in rest:
            name, _, value = rest.partition("=")
            values.setdefault(name.strip(), _filled(value.strip().strip("\"'"), values))
        elif instruction in ("COPY", "ADD"):
            words = json.loads(rest[rest.index("[") :]) if rest.rstrip().endswith("]") else shlex.split(rest)
            flags = [word for word in words if word.startswith("--")]
            if not any(flag.startswith("--from=") for flag in flags):
                plain = [word for word in words if not word.startswith("--")]
                sources += [_filled(word, values) for word in plain[:-1]]
    return [each for each in sources if "://" not in each]


def declared(dockerfile: str) -> set[str]:
    """PURE: the names of the build arguments that a Dockerfile takes."""
    return {rest.partition("=")[0].strip() for instruction, rest in _instructions(dockerfile) if instruction == "ARG"}


def matching(source: str, files: Iterable[str]) -> list[str]:
    """PURE: the files that one source of COPY means: a file, a folder, or a pattern."""
    wanted = str(PurePosixPath(source.lstrip("/"))) if source.strip("/.") else "."
    if wanted == ".":
        return list(files)
    return [each for each in files if each == wanted or each.startswith(f"{wanted}/") or fnmatch.fnmatch(each, wanted)]


def known_files(repository: Path) -> list[str]:
    """All files that git tracks or would track; without git, all that are neither hidden nor byte code."""
    command = ["git", "-C", str(repository), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        listed: Sequence[str] = done.stdout.split("\0") if done.returncode == 0 else _walked(repository)
    except FileNotFoundError:
        listed = _walked(repository)
    return sorted({each for each in listed if each and (repository / each).is_file()})


def _walked(repository: Path) -> list[str]:
    found = []
    for folder, folders, files in os.walk(repository):
        folders[:] = [each for each in folders if not each.startswith(".") and each not in SKIPPED_FOLDERS]
        found += [str((Path(folder) / each).relative_to(repository)) for each in files if not each.endswith(".pyc")]
    return found


def _instructions(dockerfile: str) -> list[tuple[str, str]]:
    """(instruction in capitals, its rest) with continuation lines joined and comments left out."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\s*\n", " ", "\n".join(lines))
    parts = (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    return [(name.upper(), rest) for name, _, rest in parts]


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found.group(1), found.group(0)), text)
