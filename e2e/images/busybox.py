"""Two tiny images that need no build: busybox, for cheap pods, and the pause image of every pod's sandbox."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import CACHE
from e2e.cluster.node_files import PAUSE_IMAGE
from e2e.cluster.progress import Progress
from e2e.cluster.requirements import install
from e2e.images.oci import Entry, ImageConfig, layer, write_archive

IMAGES = CACHE / "images"
BUSYBOX_IMAGE = "localhost/omni-busybox:dev"
PACKAGE = "busybox-static"


def busybox_archives(progress: Progress) -> list[Path]:
    """The archives of the busybox and the pause image, written if they are missing or busybox changed."""
    program = _static_busybox(progress)
    stamp = f"{program.stat().st_size}-{program.stat().st_mtime_ns}"
    IMAGES.mkdir(parents=True, exist_ok=True)
    pause, busybox = IMAGES / f"pause-{stamp}.tar", IMAGES / f"busybox-{stamp}.tar"
    if not (pause.exists() and busybox.exists()):
        for old in (*IMAGES.glob("pause-*.tar"), *IMAGES.glob("busybox-*.tar")):
            old.unlink()
        _write(program, pause, busybox)
    return [pause, busybox]


def _write(program: Path, pause: Path, busybox: Path) -> None:
    data = program.read_bytes()
    tool = [Entry("bin"), Entry("bin/busybox", data)]
    links = [Entry(f"bin/{name}", link="busybox", mode=0o777) for name in _applets(program) if name != "busybox"]
    etc = [
        Entry("etc"),
        Entry("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n", mode=0o644),
        Entry("etc/group", b"root:x:0:\nnogroup:x:65534:\n", mode=0o644),
    ]
    folders = [
        Entry("tmp", mode=0o1777),
        Entry("root", mode=0o700),
        Entry("run"),
        Entry("dev"),
        Entry("proc"),
        Entry("sys"),
    ]
    path = {"PATH": "/bin"}
    layers = {pause: layer(tool), busybox: layer([*tool, *links, *etc, *folders])}
    configs = {
        pause: (PAUSE_IMAGE, ImageConfig(entrypoint=["/bin/busybox", "sleep", "infinity"], user="65534:65534")),
        busybox: (BUSYBOX_IMAGE, ImageConfig(command=["/bin/sh"], environment=path)),
    }
    for archive, content in layers.items():
        layer_file = archive.with_suffix(".layer")
        layer_file.write_bytes(content)
        write_archive(archive, configs[archive][0], [layer_file], configs[archive][1])
        layer_file.unlink()


def _static_busybox(progress: Progress) -> Path:
    """The machine's busybox, installed if it is missing; a dynamically linked one would not run in an empty image."""
    for attempt in range(2):
        found = shutil.which("busybox")
        if found and is_static(Path(found).read_bytes()):
            return Path(found)
        if attempt == 0:
            install({PACKAGE}, progress)
    raise ClusterError("no statically linked busybox on PATH", f"install it: apt-get install {PACKAGE}")


def is_static(program: bytes) -> bool:
    """Whether a 64-bit ELF program asks for no interpreter (a program header of type 3), that is no dynamic linker."""
    (table,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    return all(struct.unpack_from("<I", program, table + size * each)[0] != 3 for each in range(count))


def _applets(program: Path) -> list[str]:
    return subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
