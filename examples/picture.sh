#!/usr/bin/env bash
# Asks about a picture from a file with curl: bash examples/picture.sh picture.png "What is in this image?"
set -euo pipefail
[ $# = 2 ] || { echo "usage: $0 PICTURE QUESTION" >&2; exit 2; }
url="${OPENAI_BASE_URL:-http://127.0.0.1:10001/v1}"
question="${2//\\/\\\\}"
question="${question//\"/\\\"}"

# Through a pipe: a picture is longer than a command line may be.
{
    printf '{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,'
    base64 < "$1" | tr -d '\n'
    printf '"}}, {"type": "text", "text": "%s"}]}]}' "$question"
} | curl --fail-with-body --silent --show-error "$url/chat/completions" \
    -H 'content-type: application/json' -H "authorization: Bearer ${OPENAI_API_KEY:-none}" --data-binary @-
echo
