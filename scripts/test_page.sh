#!/usr/bin/env bash
# Tries the proxy's page in a real browser, before a stack with the demonstration model, and takes
# the screenshots of docs/images. Not part of CI: it needs Chromium (Debian: apt-get install
# chromium), or the path of another one in BROWSER. Makes a virtual environment of its own for
# Playwright, which drives the browser. IMAGES: another folder for the screenshots.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
BROWSER="${BROWSER:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}"
[ -n "$BROWSER" ] || { echo "error: no Chromium; install it, or give its path in BROWSER" >&2; exit 1; }
PORT="${PORT:-18701}"
IMAGES="${IMAGES:-docs/images}"
python="${VENV:-.venv}/bin/python"
playwright=".venv-page"
if [ ! -x "$playwright/bin/playwright" ]; then
    "${PYTHON:-python3}" -m venv "$playwright"
    "$playwright/bin/python" -m pip install --quiet --disable-pip-version-check playwright==1.65.2
fi

logs=$(mktemp -d)
export ADMIN_API_KEY="${ADMIN_API_KEY:-key-of-the-page-test}"
"$python" -P -m triptych serve demo --num-p 2 --num-d 2 --port "$PORT" --master-port "$((PORT + 1))" \
    --encode-port "$((PORT + 10))" --prefill-port "$((PORT + 20))" --decode-port "$((PORT + 30))" \
    --log-path "$logs" >"$logs/serve.out" 2>&1 &
stack=$!
load=
cleanup() {
    [ -z "$load" ] || kill "$load" 2>/dev/null || true
    kill -TERM "$stack" 2>/dev/null || true
    wait "$stack" || true
}
trap cleanup EXIT
for _ in $(seq 120); do
    grep -q "^Serving at" "$logs/serve.out" && break
    kill -0 "$stack" || { cat "$logs/serve.out" >&2; exit 1; }
    sleep 1
done
grep "^Serving at" "$logs/serve.out"
# Others ask too, so that there is something to see.
"$python" -m benchmarks.serve --backend openai-chat --base-url "http://127.0.0.1:$PORT" \
    --dataset-name demo --num-prompts 600 --request-rate 3 --seed 0 >"$logs/load.out" 2>&1 &
load=$!
"$playwright/bin/python" scripts/test_page.py --url "http://127.0.0.1:$PORT" \
    --admin-key "$ADMIN_API_KEY" --browser "$BROWSER" --images "$IMAGES"
