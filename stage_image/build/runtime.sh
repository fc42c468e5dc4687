#!/bin/sh
# For images that shall see a GPU: Triton compiles its launchers with cc when it first meets a GPU.
set -eu
[ -e /opt/omni/venv/lib/python3.11/site-packages/triton/backends/nvidia/bin/ptxas ] || exit 0
export DEBIAN_FRONTEND=noninteractive
wanted=""
command -v cc >/dev/null || wanted="$wanted gcc libc6-dev"
python3.11 -c 'import os, sysconfig as s; raise SystemExit(not os.path.exists(s.get_path("include") + "/Python.h"))' ||
    wanted="$wanted python3-dev"
[ -z "$wanted" ] && exit 0
apt-get update
# shellcheck disable=SC2086
apt-get install -y --no-install-recommends $wanted
rm -rf /var/lib/apt/lists/*
