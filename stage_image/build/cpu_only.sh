#!/bin/sh
# usage: cpu_only.sh SITE_PACKAGES
# Makes torch importable without the CUDA libraries (see cuda_stubs.py), and removes what only a GPU would run.
set -eu
site=$1
"$(dirname "$site")/../../bin/python" "$(dirname "$0")/cuda_stubs.py" "$site"
rm -rf "$site/triton/backends/nvidia/bin" "$site/triton/backends/nvidia/lib" "$site/triton/_C/libproton.so" \
    "$site/torch/include" "$site/torch/bin"/protoc* "$site/nvidia/cu13/include"
find "$site/nvidia" -name '*.so*' ! -name 'libcudart.so.*' ! -name 'libcupti.so.*' -delete
# The wheel carries its debugging symbols: 300 MB.
strip --strip-unneeded "$site/triton/_C/libtriton.so"
