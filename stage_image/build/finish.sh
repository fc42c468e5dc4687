#!/bin/sh
# After omni_stage has been copied into the build stage: the tiny pipeline's model, and bytecode.
set -eu
export PYTHONPATH=/opt/omni/lib
/opt/omni/venv/bin/python -m omni_stage.tiny.make_model /opt/omni/models/tiny-omni
/opt/omni/venv/bin/python -m compileall -q /opt/omni/lib
