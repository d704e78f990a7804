#!/usr/bin/env bash
# On a machine with a GPU, torch and Triton: every op, the goldens, then speed at real shapes; results as JSON.
#
#     tests/gpu/run.sh [results.json]
#     tests/gpu/run.sh --dry-run            without a GPU, in Triton's interpreter, at tiny shapes
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD:$PWD/tests"
exec timeout "${LIMIT:-480}" "${PYTHON:-python3}" tests/gpu/measure.py "$@"
