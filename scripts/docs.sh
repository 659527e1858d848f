#!/usr/bin/env bash
# The manual as web pages, from nothing but Python and pip: scripts/docs.sh [folder]
#
# They go to build/docs (or the folder), to be read from disk or served from anywhere. A warning is an error. All is made
# anew each time: pictures and docstrings are the library's, of which Sphinx does not know that they changed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment docs
to=$(realpath -m "${1:-$ROOT/build/docs}")
cd "$ROOT"
"$PYTHON" -m sphinx -q -E -W --keep-going -b html -d "$to.cache" docs "$to"
echo "spmdsim: the manual is $to/index.html"
