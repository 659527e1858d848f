#!/usr/bin/env bash
# Draws the pictures of the documents anew, each with one command: scripts/pictures.sh [FOLDER]
#
# They are made of numbers alone, so they are the same on every machine; tests/test_documents_pictures.py compares them.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$root/docs/pictures}
python=${PYTHON:-python}
mkdir -p "$folder"
"$python" -m spmdsim plan --mesh dp=2,tp=4 --src "dp,tp" --dst "tp,dp" --shape 8,8 --svg "$folder/plan.svg" >/dev/null
"$python" -m spmdsim layout --mesh dp=2,tp=4 --dims "dp,tp" --shape 32,784 --svg "$folder/layout.svg" >/dev/null
"$python" -m spmdsim layout --mesh dp=2,tp=4 --dims "(S(0),P)" --shape 32,5 --svg "$folder/addends.svg" >/dev/null
"$python" -m spmdsim layout --mesh dp=2,tp=4 --dims "(S(0),B)" --shape 32,5 --svg "$folder/sum.svg" >/dev/null
"$python" -m spmdsim collective show all_reduce ring -n 4 --svg "$folder/ring.svg"
"$python" -m spmdsim search --program mlp --layers 2 --hidden 256 --batch 512 -n 8 --svg "$folder/search.svg" >/dev/null
"$python" "$root/scripts/badges.py" "$folder"
