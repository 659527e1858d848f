#!/usr/bin/env bash
# Build the manual as web pages, with nothing but Python and pip: scripts/docs.sh [folder]
#
# The pages are written to build/docs (or the folder), to be read from disk or served from anywhere. A warning is an error.
# All pages are made anew each time, because Sphinx does not notice changes of the library's pictures and docstrings.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment docs
to=$(realpath -m "${1:-$ROOT/build/docs}")
cd "$ROOT"
"$PYTHON" -m sphinx -q -E -W --keep-going -b html -d "$to.cache" docs "$to"
echo "spmdsim: the manual is $to/index.html"
