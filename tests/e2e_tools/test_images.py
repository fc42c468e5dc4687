"""Image building: what a Dockerfile depends on, archives that depend on content alone, pip's settings inside."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.images import archived_images
from e2e.images.busybox import is_static
from e2e.images.context import Context, context, copied, declared, matching
from e2e.images.layout import NAME_NOTES, Layout
from e2e.images.oci import Entry, ImageConfig, layer, write_archive
from e2e.images.package_access import configuration, parsed, within

DOCKERFILE = """\
# COPY not/this /x
ARG BASE_IMAGE=python:3.11-slim
ARG LOCK=lock-gpu.txt
FROM ${BASE_IMAGE} AS build
ARG PIP_INDEX_URL
COPY --chown=1:1 ${LOCK} \\
     code/ /build/
COPY ["a file.txt", "/build/"]
ADD https://example.com/x /x
FROM ${BASE_IMAGE}
COPY --from=build /build /build
"""


def test_copied_sources_are_found_with_arguments_filled_in() -> None:
    assert copied(DOCKERFILE, {}) == ["lock-gpu.txt", "code/", "a file.txt"]
    assert copied(DOCKERFILE, {"LOCK": "lock-cpu.txt"})[0] == "lock-cpu.txt"
    assert declared(DOCKERFILE) == {"BASE_IMAGE", "LOCK", "PIP_INDEX_URL"}


def test_a_source_is_a_file_a_folder_a_pattern_or_everything() -> None:
    files = ["code/a.py", "code/b/c.py", "codex.py", "lock.txt"]
    assert matching("code/", files) == ["code/a.py", "code/b/c.py"]
    assert matching("./lock.txt", files) == ["lock.txt"]
    assert matching("*.txt", files) == ["lock.txt"]
    assert matching(".", files) == files


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "code" / "__pycache__").mkdir(parents=True)
    (tmp_path / "code" / "a.py").write_text("a = 1\n")
    (tmp_path / "code" / "__pycache__" / "a.pyc").write_bytes(b"x")
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    (tmp_path / "Dockerfile").write_text("FROM x\nCOPY code /code\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def test_ignored_files_neither_count_nor_reach_the_build(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = context(repository, "Dockerfile", {})
    assert found.files == ("code/a.py",)
    target = tmp_path_factory.mktemp("context")
    found.gather(target)
    assert sorted(str(each.relative_to(target)) for each in target.rglob("*") if each.is_file()) == [
        "Dockerfile",
        "code/a.py",
    ]


def test_a_key_follows_content_modes_and_arguments_and_not_dates(repository: Path) -> None:
    found: Context = context(repository, "Dockerfile", {})
    key = found.key(base="1")
    (repository / "code" / "a.py").touch()
    assert found.key(base="1") == key
    assert found.key(base="2") != key
    (repository / "code" / "a.py").chmod(0o755)
    assert found.key(base="1") != key
    (repository / "code" / "a.py").chmod(0o644)
    (repository / "code" / "a.py").write_text("a = 2\n")
    assert found.key(base="1") != key


def test_a_missing_source_is_named(repository: Path) -> None:
    (repository / "Dockerfile").write_text("FROM x\nCOPY absent /x\n")
    with pytest.raises(ClusterError, match="copies absent"):
        context(repository, "Dockerfile", {})


def image(folder: Path, name: str, *paths: str) -> tuple[Path, str]:
    layers = []
    for number, path in enumerate(paths):
        file = folder / f"{name}-{number}.layer"
        file.write_bytes(layer([Entry(path, path.encode())]))
        layers.append(file)
    archive = folder / f"{name}.tar"
    return archive, write_archive(archive, f"localhost/{name}:dev", layers, ImageConfig(entrypoint=["/x"]))


def test_equal_content_makes_an_equal_image(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first, second = image(tmp_path, "x", "a")[1], image(tmp_path / "other", "x", "a")[1]
    assert first == second
    assert image(tmp_path, "x", "b")[1] != first


def test_an_archive_tells_its_image_and_digest(tmp_path: Path) -> None:
    archive, digest = image(tmp_path, "x", "a")
    assert archived_images(archive) == {"localhost/x:dev": digest}
    (tmp_path / "text.tar").write_text("no archive")
    with pytest.raises(ClusterError, match="is not an image archive"):
        archived_images(tmp_path / "text.tar")


def layout_of(tmp_path: Path, tag: str, *paths: str) -> Layout:
    """A layout as skopeo leaves it: the unpacked archive, its image noted under the tag."""
    archive, _ = image(tmp_path, tag, *paths)
    folder = tmp_path / "layout"
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    index = json.loads((folder / "index.json").read_text())
    index["manifests"][0]["annotations"] = {NAME_NOTES[1]: tag}
    (folder / "index.json").write_text(json.dumps(index))
    return Layout(folder)


def test_layers_that_the_other_side_has_are_left_out(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, "stage", "big", "small")
    manifest, config, big, small = layout.digests("stage")
    output = io.BytesIO()
    layout.write_archive("stage", "localhost/stage:dev", {manifest, big}, output)
    output.seek(0)
    with tarfile.open(fileobj=output) as tar:
        sent = {f"sha256:{name.rpartition('/')[2]}" for name in tar.getnames() if name.startswith("blobs/")}
        noted = json.load(tar.extractfile("index.json") or io.BytesIO())["manifests"][0]["annotations"]
    assert sent == {manifest, config, small}
    assert noted == dict.fromkeys(NAME_NOTES, "localhost/stage:dev")


def test_blobs_of_no_image_are_removed(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, "stage", "a")
    stray = layout.folder / "blobs" / "sha256" / ("0" * 64)
    stray.write_bytes(b"12345")
    assert layout.remove_unused() == 5
    assert all(layout.blob(each).exists() for each in layout.digests("stage"))


def test_pips_settings_are_those_of_the_machine_with_paths_of_the_build() -> None:
    listing = "global.index-url='https://example.com/simple'\n:env:.timeout='180'\nlist.format='json'\n"
    settings = parsed(listing)
    assert settings == {"index-url": "https://example.com/simple", "timeout": "180"}
    inside = within({**settings, "cert": "/machine/ca.crt", "cache-dir": "/root/.cache"}, ["/w"], certificates=True)
    assert inside == {**settings, "find-links": "/w", "cert": "/run/omni-build/certificates.pem"}
    assert configuration(inside).splitlines()[:2] == ["[global]", "index-url = https://example.com/simple"]


def test_a_dynamically_linked_program_is_told_from_a_static_one() -> None:
    def program(*kinds: int) -> bytes:
        header = bytearray(64)
        header[32:40] = (64).to_bytes(8, "little")
        header[54:56], header[56:58] = (56).to_bytes(2, "little"), len(kinds).to_bytes(2, "little")
        return bytes(header) + b"".join(kind.to_bytes(4, "little") + bytes(52) for kind in kinds)

    assert is_static(program(1, 2))
    assert not is_static(program(1, 3))
