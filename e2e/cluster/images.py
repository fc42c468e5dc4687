"""Images in a node's containerd: which are there, and the import of those that are not."""

from __future__ import annotations

import json
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Progress

NAMESPACE = "k8s.io"  # the kubelet's
IMPORT = ("images", "import", "--local")  # half the time of ctr's default, which streams through its transfer service


@dataclass(frozen=True)
class NodeImages:
    """containerd's images. `inside` gives the command line that runs a command in the node."""

    inside: Callable[..., list[str]]
    ctr: Path

    def present(self) -> dict[str, str]:
        """{image name: digest of its manifest}."""
        rows = [line.split() for line in self._run("images", "list").splitlines()[1:]]
        return {row[0]: row[2] for row in rows if len(row) > 2}

    def blobs(self) -> set[str]:
        """The digests of all content that containerd has."""
        return set(self._run("content", "list", "--quiet").split())

    def load(self, archives: Sequence[Path], progress: Progress) -> None:
        """Import archives (OCI layout, or docker's), but for those whose images are there under the same digest."""
        present = self.present()
        for archive in archives:
            wanted = archived_images(archive)
            if wanted and all(present.get(name) == digest for name, digest in wanted.items()):
                continue
            with progress.step(f"importing {archive.name}"):
                self._run(*IMPORT, str(archive))

    def load_stream(self, write: Callable[[IO[bytes]], None]) -> None:
        """Import the archive that `write` writes; layers that containerd has may be left out of it."""
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                self._command(*IMPORT, "-"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors
            )
            assert process.stdin
            try:
                with process.stdin as stream:
                    write(stream)
            except BrokenPipeError:
                pass  # containerd gave up; its reason follows
            if process.wait():
                errors.seek(0)
                raise _refused(errors.read().decode(errors="replace"))

    def forget_unnamed(self) -> None:
        """Let containerd collect images whose name a newer one took; a container that runs one keeps its files."""
        present = self.present()
        named = {digest for name, digest in present.items() if not name.startswith("sha256:")}
        stale = [name for name, digest in present.items() if digest not in named]
        if stale:
            self._run("images", "remove", *stale)

    def _command(self, *arguments: str) -> list[str]:
        return self.inside(self.ctr, f"--namespace={NAMESPACE}", *arguments)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(self._command(*arguments), capture_output=True, text=True)
        if done.returncode:
            raise _refused(done.stderr)
        return done.stdout


def archived_images(archive: Path) -> dict[str, str]:
    """{image name: digest} of an OCI archive; empty for docker's format, whose digest an import makes."""
    try:
        with tarfile.open(archive) as tar:
            index = tar.extractfile("index.json")
            manifests = json.load(index)["manifests"] if index else []
    except KeyError:
        return {}
    except (OSError, tarfile.TarError) as error:
        raise ClusterError(
            f"{archive} is not an image archive: {str(error).splitlines()[0]}",
            "make one with `python -m e2e.images export`, `docker save` or `buildah push … oci-archive:FILE`",
        ) from error
    names = {each["digest"]: each.get("annotations", {}).get("io.containerd.image.name") for each in manifests}
    return {name: digest for digest, name in names.items() if name}


def _refused(message: str) -> ClusterError:
    lines = message.strip().splitlines()[-5:]
    return ClusterError(
        "containerd refused", "see its message; `python -m e2e.cluster logs containerd` has more", lines
    )
