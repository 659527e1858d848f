#!/usr/bin/env bash
# Draw the pictures of the documents anew, each with one command of spmdsim: scripts/pictures.sh [FOLDER]
#
# The pictures depend on no measurement, so they are equal on every machine; tests/test_documents_pictures.py compares them.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$root/docs/pictures}
python=${PYTHON:-python}
mkdir -p "$folder"
# One process runs all commands, because each new process would load numpy and the package.
run_commands='import shlex, sys
from spmdsim.cli.main import main
sys.exit(any(main(shlex.split(line)) for line in sys.stdin))'
"$python" -c "$run_commands" >/dev/null <<COMMANDS
plan --mesh dp=2,tp=4 --src dp,tp --dst tp,dp --shape 8,8 --svg '$folder/plan.svg'
layout --mesh dp=2,tp=4 --dims dp,tp --shape 32,784 --svg '$folder/layout.svg'
layout --mesh dp=2,tp=4 --dims "(S(0),P)" --shape 32,5 --svg '$folder/addends.svg'
layout --mesh dp=2,tp=4 --dims "(S(0),B)" --shape 32,5 --svg '$folder/sum.svg'
collective show all_reduce ring -n 4 --svg '$folder/ring.svg'
search --program mlp --layers 2 --hidden 256 --batch 512 -n 8 --svg '$folder/search.svg'
COMMANDS
"$python" "$root/scripts/badges.py" "$folder"
