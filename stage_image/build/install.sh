#!/bin/sh
# Makes /opt/omni/venv: a virtual environment from the lock file, with its bytecode.
# Works on python:3.11-slim and on a plain Debian with python3.11: what is missing comes from Debian's packages.
# Package indexes come from pip's own variables (PIP_INDEX_URL, PIP_CERT, ...) as build arguments; nothing of them stays.
set -eu
export DEBIAN_FRONTEND=noninteractive
UV_VERSION=0.13.9
requirements=/build/requirements.txt
python=$(command -v python3.11)

wanted=""
command -v readelf >/dev/null || wanted="$wanted binutils"
command -v cc >/dev/null || wanted="$wanted gcc libc6-dev"
"$python" -m pip --version >/dev/null 2>&1 || wanted="$wanted python3-pip"
if grep -q '^cdifflib' "$requirements"; then
    # No wheel: it is compiled against Python.h.
    command -v c++ >/dev/null || wanted="$wanted g++"
    "$python" -c 'import os, sysconfig as s; raise SystemExit(not os.path.exists(s.get_path("include") + "/Python.h"))' ||
        wanted="$wanted python3-dev"
fi
if [ -n "$wanted" ]; then
    apt-get update
    # shellcheck disable=SC2086
    apt-get install -y --no-install-recommends $wanted
fi

# uv downloads and unpacks side by side, which halves the build.
"$python" -m pip install --quiet --target /build/uv "uv==$UV_VERSION"
[ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE="$PIP_CERT"
[ -z "${PIP_INDEX_URL:-}" ] || export UV_DEFAULT_INDEX="$PIP_INDEX_URL"
[ -z "${PIP_EXTRA_INDEX_URL:-}" ] || export UV_INDEX="$PIP_EXTRA_INDEX_URL"
export UV_CACHE_DIR=/build/uv-cache UV_HTTP_TIMEOUT="${PIP_DEFAULT_TIMEOUT:-180}" UV_PYTHON_DOWNLOADS=never
uv=/build/uv/bin/uv
$uv venv --quiet --python "$python" /opt/omni/venv
$uv pip install --quiet --python /opt/omni/venv/bin/python --no-deps --require-hashes -r "$requirements"

site=$(/opt/omni/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
[ -e "$site/nvidia/cu13/lib/libcublas.so.13" ] || sh /build/cpu_only.sh "$site"

# Bytecode now: at run time the file system is read-only. Some packages ship files that no Python can compile.
/opt/omni/venv/bin/python -m compileall -q -j 0 "$site" >/dev/null || true

# What was only needed for this goes, in the same layer.
rm -rf /build/uv /build/uv-cache
if [ -n "$wanted" ]; then
    # shellcheck disable=SC2086
    apt-get purge -y --auto-remove $wanted
    rm -rf /var/lib/apt/lists/*
fi
