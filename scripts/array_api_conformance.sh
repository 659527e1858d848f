#!/usr/bin/env bash
# Run the array API standard's own test suite on spmdsim.array_api:
#   scripts/array_api_conformance.sh FOLDER [--max-examples N] [pytest's arguments]
# Every created tensor is split over 3 ranks in lock step. FOLDER is a checkout of data-apis/array-api-tests with its
# submodule; nothing is written into it. Exit code 1 if a test fails that the list in docs/array_api.md lacks, or if less
# than 95 % of the tests pass.
set -euo pipefail
[ $# -ge 1 ] && [ -d "$1/array_api_tests" ] || {
  echo "usage: scripts/array_api_conformance.sh FOLDER [--max-examples N], where FOLDER/array_api_tests is the suite" >&2
  exit 2
}
suite=$(cd "$1" && pwd)
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh
prepare_environment conformance
here=$PWD
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
case " $* " in *max-examples*) ;; *) set -- --max-examples 10 "$@" ;; esac
PYTHON=$(command -v "$PYTHON" || echo "$here/$PYTHON")
(
  cd "$suite"
  PYTHONPATH=$here/scripts:$here PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY=$results/hypothesis \
    ARRAY_API_TESTS_MODULE=array_api_split "$PYTHON" -W ignore -m pytest -q -p no:cacheprovider --disable-deadline \
    --tb=line --junitxml="$results/results.xml" array_api_tests "$@" >"$results/output" 2>&1
) || [ -s "$results/results.xml" ] || {
  tail -20 "$results/output"
  exit 1
}
"$PYTHON" scripts/array_api_report.py "$results/results.xml" docs/array_api.md
