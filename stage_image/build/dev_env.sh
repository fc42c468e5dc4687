#!/bin/sh
# usage: dev_env.sh FOLDER
# The stage environment for tests on a machine without a GPU: what the CPU image has, and pytest. Needs uv, cc, binutils.
# Does nothing where FOLDER is of the same lock file already.
set -eu
folder=$1
here=$(cd "$(dirname "$0")" && pwd)
lock=$here/../requirements-cpu.txt
stamp=$(cat "$lock" "$here"/*.sh "$here"/*.py | sha256sum | cut -d' ' -f1)
[ "$(cat "$folder/stamp" 2>/dev/null)" != "$stamp" ] || exit 0
rm -rf "$folder"
uv venv --quiet --python 3.11 "$folder"
uv pip install --quiet --link-mode copy --python "$folder/bin/python" --no-deps --require-hashes -r "$lock"
uv pip install --quiet --python "$folder/bin/python" --no-deps \
    pytest==9.2.0 pytest-asyncio==1.5.0 pluggy==1.7.0 iniconfig==2.3.1
sh "$here/cpu_only.sh" "$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
"$folder/bin/python" -m compileall -q -j 0 "$folder/lib" >/dev/null || true
echo "$stamp" >"$folder/stamp"
