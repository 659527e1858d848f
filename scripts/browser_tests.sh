#!/usr/bin/env bash
# Test the page of `spmdsim explore` in a headless browser: clicks, keys, dark mode, a telephone's width, and hundreds of
# its states compared with the library. The browser is Chromium or Chrome if one is on PATH, else Playwright's own.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
prepare_environment test
cd "$ROOT"
"$PYTHON" -c 'import playwright' 2>/dev/null ||
    install_editable browser ||
    fail "installing Playwright failed; see above"
command -v chromium chromium-browser google-chrome >/dev/null ||
    "$PYTHON" -m playwright install chromium ||
    fail "there is no browser: install chromium"
exec "$PYTHON" -m pytest -q tests/explore/test_browser.py "$@"
