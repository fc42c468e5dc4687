"""One OCI layout folder for all images: layers that images have in common are kept, and sent to a node, once.

Layers are uncompressed: on one machine, compressing and decompressing costs more than the disk does.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from e2e.images.oci import INDEX

NAME_NOTES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")

CHUNK = 1024 * 1024


class Layout:
    """The folder: `oci-layout`, `index.json`, `blobs/sha256/*`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def manifests(self) -> dict[str, dict[str, Any]]:
        """{tag: descriptor} of the images in the layout."""
        path = self.folder / "index.json"
        entries = json.loads(path.read_text())["manifests"] if path.exists() else []
        named = ((each.get("annotations", {}).get(NAME_NOTES[1]), each) for each in entries)
        return {tag: descriptor for tag, descriptor in named if tag}

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")

    def digests(self, tag: str) -> list[str]:
        """All blobs of an image: its manifest first, then its configuration and layers."""
        manifest = self.manifests()[tag]["digest"]
        content = json.loads(self.blob(manifest).read_text())
        return [manifest, content["config"]["digest"], *dict.fromkeys(each["digest"] for each in content["layers"])]

    def remove_unused(self) -> int:
        """Remove the blobs of no image; returns how many bytes that freed."""
        used = {digest for tag in self.manifests() for digest in self.digests(tag)}
        freed = 0
        for path in (self.folder / "blobs" / "sha256").glob("*"):
            if f"sha256:{path.name}" not in used:
                freed += path.stat().st_size
                path.unlink()
        return freed

    def write_archive(self, tag: str, name: str, present: Collection[str], output: IO[bytes]) -> None:
        """Write an image as an OCI archive under `name`, leaving out the layers `present` on the other side."""
        descriptor = {**self.manifests()[tag], "annotations": dict.fromkeys(NAME_NOTES, name)}
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}
        with tarfile.open(fileobj=output, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK) as tar:
            tar.copybufsize = CHUNK  # type: ignore[attr-defined]  # typeshed knows it as an argument only
            for path, data in _heads(index):
                _add(tar, path, io.BytesIO(data), len(data))
            for number, digest in enumerate(self.digests(tag)):
                if number < 2 or digest not in present:  # manifest and configuration are small, and always sent
                    blob = self.blob(digest)
                    with blob.open("rb") as file:
                        _add(tar, f"blobs/{digest.replace(':', '/')}", file, blob.stat().st_size)


def _heads(index: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    yield "oci-layout", b'{"imageLayoutVersion":"1.0.0"}'
    yield "index.json", json.dumps(index).encode()


def _add(tar: tarfile.TarFile, path: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(path)
    member.size = size
    tar.addfile(member, content)
