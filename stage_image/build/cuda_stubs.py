"""Make the CPU image's stand-ins for the CUDA libraries that PyPI's torch links against.

PyPI has one torch for x86-64 Linux, the CUDA build: its shared objects name cuBLAS, cuDNN, NCCL and others as needed,
and the dynamic linker refuses `import torch` without them, although a machine with no GPU never calls into them. They
are 2.9 GB of a 4.7 GB image. This program writes, for every such library that is absent, a shared object of that name
that defines the functions torch refers to; each of them prints its own name and aborts. The CUDA runtime (libcudart,
0.7 MB) stays NVIDIA's own, so `torch.cuda.is_available()` is answered by the real thing: no driver, no device.

Usage: cuda_stubs.py SITE_PACKAGES. Needs `cc` and `readelf`. Never run it for an image that shall see a GPU: the
stand-ins win over nothing, but they would take the place of libraries that are really missing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

VENDOR = re.compile(r"^lib(cu|nv|nccl)\w*\.so\.\d+$")
"""Sonames of NVIDIA's libraries, as torch names them."""
FROM_DRIVER = frozenset({"libcuda.so.1"})
"""Comes with the driver, and only a library that torch opens when a GPU is there asks for it."""
NOT_VERSIONED_PREFIXES = {
    "libcurand.so.10": ("curand",),
    "libnccl.so.2": ("nccl",),
    "libcusparseLt.so.0": ("cusparseLt",),
    "libcufile.so.0": ("cuFile",),
}
"""Which undefined symbols belong to a library that has no symbol versions: by the library's own prefix."""

SOURCE = """#include <stdio.h>
#include <stdlib.h>
#define ABSENT(name) void name(void) {{ \\
  fputs(#name ": {soname} is a stand-in in this image, which has no CUDA\\n", stderr); abort(); }}
{functions}
"""


@dataclass
class Missing:
    """One library to stand in for: its functions by symbol version ("" for none)."""

    soname: str
    functions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def main() -> None:
    """Write the stand-ins into torch's own library folder."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} SITE_PACKAGES")
    site = Path(sys.argv[1])
    libraries = sorted((site / "torch" / "lib").glob("*.so*"))
    if not libraries:
        sys.exit(f"no torch in {site}")
    for missing in find_missing(site, libraries):
        write_stub(missing, site / "torch" / "lib")
        print(f"{missing.soname}: {sum(map(len, missing.functions.values()))} functions")


def find_missing(site: Path, libraries: list[Path]) -> list[Missing]:
    """The NVIDIA libraries that torch's shared objects need and `site` has not."""
    present = {p.name for p in (site / "nvidia").rglob("*.so*")} | {p.name for p in libraries}
    missing: dict[str, Missing] = {}
    undefined: set[tuple[str, str]] = set()
    for library in libraries:
        for soname in needed(library):
            if VENDOR.match(soname) and soname not in present | FROM_DRIVER:
                missing.setdefault(soname, Missing(soname))
        undefined |= undefined_symbols(library)
    versions = {version: soname for library in libraries for version, soname in version_owners(library).items()}
    for symbol, version in sorted(undefined):
        owner = versions.get(version) if version else unversioned_owner(symbol)
        if owner in missing:
            missing[owner].functions[version].add(symbol)
    return list(missing.values())


def unversioned_owner(symbol: str) -> str | None:
    """The library of an unversioned symbol. The longest prefix wins: `cusparseLt` before any shorter one."""
    matches = [
        (len(prefix), soname)
        for soname, prefixes in NOT_VERSIONED_PREFIXES.items()
        for prefix in prefixes
        if symbol.startswith(prefix)
    ]
    return max(matches)[1] if matches else None


def needed(library: Path) -> list[str]:
    """Sonames that the dynamic section names."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", library))


def undefined_symbols(library: Path) -> set[tuple[str, str]]:
    """(symbol, version) of everything that the library wants from others; "" where it is not versioned."""
    found = set()
    for line in readelf("--dyn-syms", library).splitlines():
        parts = line.split()
        if len(parts) >= 8 and parts[6] == "UND":
            symbol, _, version = parts[7].partition("@")
            found.add((symbol, version.lstrip("@")))
    return found


def version_owners(library: Path) -> dict[str, str]:
    """Which soname each symbol version is wanted from."""
    owners: dict[str, str] = {}
    soname = ""
    for line in readelf("-V", library).splitlines():
        if match := re.search(r"File: (\S+)", line):
            soname = match[1]
        elif match := re.search(r"Name: (\S+)\s+Flags", line):
            owners[match[1]] = soname
    return owners


def readelf(option: str, library: Path) -> str:
    """readelf's wide output."""
    return subprocess.run(
        ["readelf", "--wide", option, str(library)], check=True, text=True, capture_output=True
    ).stdout


def write_stub(missing: Missing, folder: Path) -> None:
    """Compile one stand-in, with the symbol versions that the linker will look for."""
    names = sorted(set().union(*missing.functions.values()))
    functions = "\n".join(f"ABSENT({name})" for name in names)
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        source.write_text(SOURCE.format(soname=missing.soname, functions=functions))
        command = ["cc", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{missing.soname}"]
        versioned = {v: s for v, s in missing.functions.items() if v}
        if versioned:
            script.write_text("".join(f"{v} {{ global: {'; '.join(sorted(s))}; }};\n" for v, s in versioned.items()))
            command.append(f"-Wl,--version-script={script}")
        subprocess.run([*command, "-o", str(folder / missing.soname), str(source)], check=True)


if __name__ == "__main__":
    main()
