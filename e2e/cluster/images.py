"""Images in a node's containerd: which are there, and the import of those that are not."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Progress

NAMESPACE = "k8s.io"
Inside = Callable[..., list[str]]  # how a command is run inside the node


def load_archives(inside: Inside, ctr: Path, archives: Sequence[Path], progress: Progress) -> None:
    """Import image archives (OCI layout, or docker's), but for those whose images are there under the same digest."""
    present = images_in(inside, ctr)
    for archive in archives:
        wanted = archived_images(archive)
        if wanted and all(present.get(name) == digest for name, digest in wanted.items()):
            continue
        with progress.step(f"importing {archive.name}"):
            _run(inside(ctr, f"--namespace={NAMESPACE}", "images", "import", archive))


def images_in(inside: Inside, ctr: Path) -> dict[str, str]:
    """{image name: digest of its manifest} of what containerd has."""
    output = _run(inside(ctr, f"--namespace={NAMESPACE}", "images", "list"))
    rows = [line.split() for line in output.splitlines()[1:]]
    return {row[0]: row[2] for row in rows if len(row) > 2}


def archived_images(archive: Path) -> dict[str, str]:
    """{image name: digest} of an OCI archive; empty for docker's format, whose digest is only known after its import."""
    try:
        with tarfile.open(archive) as tar:
            index = tar.extractfile("index.json")
            manifests = json.load(index)["manifests"] if index else []
    except KeyError:
        return {}
    except (OSError, tarfile.TarError) as error:
        raise ClusterError(
            f"{archive} is not an image archive: {str(error).splitlines()[0]}",
            "make one with `python -m e2e.images build`, or with `docker save` or `buildah push … oci-archive:FILE`",
        ) from error
    annotated = {each["digest"]: each.get("annotations", {}) for each in manifests}
    names = {digest: notes.get("io.containerd.image.name") for digest, notes in annotated.items()}
    return {name: digest for digest, name in names.items() if name}


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(
            "containerd refused", "see its message; `python -m e2e.cluster logs containerd` has more",
            done.stderr.splitlines()[-5:],
        )  # fmt: skip
    return done.stdout
