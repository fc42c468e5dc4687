#!/bin/sh
# Makes the lock files again from the .in files: every package with its version, none left to be resolved, with hashes.
set -eu
cd "$(dirname "$0")/.."
for kind in cpu gpu; do
    uv pip compile --quiet --no-deps --generate-hashes --no-header --no-annotate --prerelease allow \
        --python-version 3.11 --python-platform x86_64-manylinux_2_34 \
        "requirements-$kind.in" --output-file "requirements-$kind.txt"
done
