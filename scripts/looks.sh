#!/usr/bin/env bash
# Photograph all that users see, light and dark, and arrange the photographs as contact sheets:
#
#   scripts/looks.sh                      commands, pictures, explore, manual: PNG files in results/looks
#   scripts/looks.sh --to FOLDER manual   only the manual
#
# Exit code 1 if a page is wider than its window, a command fails or a page reports an error. The browser is Chromium or
# Chrome if one is on PATH, else Playwright's own.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment docs
cd "$ROOT"
"$PYTHON" -c 'import playwright, pytest, greenlet' 2>/dev/null ||
    install_editable browser,docs ||
    fail "installing Playwright failed; see above"
command -v chromium chromium-browser google-chrome >/dev/null ||
    "$PYTHON" -m playwright install chromium ||
    fail "there is no browser: install chromium"
exec "$PYTHON" scripts/looks.py "$@"
