"""PURE but for files: small OCI images written with the standard library, no daemon and no registry.

An image is an archive in the OCI layout (https://github.com/opencontainers/image-spec/blob/main/image-layout.md), which
`ctr images import`, buildah and skopeo read. Equal inputs give equal bytes, and so an equal digest.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
EPOCH = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class Entry:
    """One path of a layer: a file (`data`), a symbolic link (`link`), or a folder (neither)."""

    path: str
    data: bytes | None = None
    link: str = ""
    mode: int = 0o755


@dataclass(frozen=True)
class ImageConfig:
    """What a container of the image runs by default."""

    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""


def layer(entries: Iterable[Entry]) -> bytes:
    """A layer of files that root owns, dated at the epoch."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            member = tarfile.TarInfo(entry.path)
            member.mode = entry.mode
            if entry.link:
                member.type, member.linkname = tarfile.SYMTYPE, entry.link
                archive.addfile(member)
            elif entry.data is None:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            else:
                member.size = len(entry.data)
                archive.addfile(member, io.BytesIO(entry.data))
    return buffer.getvalue()


def file_digest(path: Path) -> str:
    """`sha256:…` of a file."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def write_archive(archive: Path, name: str, layers: Sequence[Path], config: ImageConfig) -> str:
    """Write an image of these uncompressed layers; returns its manifest's digest, the image's id in containerd."""
    digests = [file_digest(each) for each in layers]
    config_blob = _encoded(_config(config, digests))
    layer_descriptors = [
        {"mediaType": LAYER, "digest": digest, "size": path.stat().st_size}
        for digest, path in zip(digests, layers, strict=True)
    ]
    manifest_blob = _encoded(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, config_blob),
            "layers": layer_descriptors,
        }
    )
    manifest = _descriptor(MANIFEST, manifest_blob)
    named = {**manifest, "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}}
    index = _encoded({"schemaVersion": 2, "mediaType": INDEX, "manifests": [named]})
    unfinished = archive.with_name(archive.name + ".unfinished")
    with tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, "oci-layout", _encoded({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", index)
        for blob in (config_blob, manifest_blob):
            _add(tar, _blob_path(_digest(blob)), blob)
        for digest, path in zip(digests, layers, strict=True):
            member = tarfile.TarInfo(_blob_path(digest))
            member.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(member, file)
    unfinished.replace(archive)
    return str(manifest["digest"])


def _config(config: ImageConfig, diff_ids: Sequence[str]) -> dict[str, Any]:
    runs: dict[str, Any] = {
        "Entrypoint": list(config.entrypoint) or None,
        "Cmd": list(config.command) or None,
        "Env": [f"{key}={value}" for key, value in config.environment.items()] or None,
        "User": config.user or None,
    }
    return {
        "architecture": "amd64",
        "os": "linux",
        "created": EPOCH,
        "config": {key: value for key, value in runs.items() if value},
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
        "history": [{"created": EPOCH, "created_by": "e2e.images"} for _ in diff_ids],
    }


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _blob_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _add(tar: tarfile.TarFile, path: str, data: bytes) -> None:
    member = tarfile.TarInfo(path)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
