"""Tell a master of a worker that cannot register by itself, and wait until requests go there.

ADMIN_API_KEY=KEY python scripts/add_instance.py http://HOST:PORT '{"role": "decode", "url": …}'
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request

WAIT_S = 60.0
_POLL_S = 0.1


def main(master: str, body: str) -> int:
    """Exit status: 1 if the worker was refused, or its probes failed all the time."""
    try:
        _call(master, body.encode())
        return _wait(master, json.loads(body)["url"].rstrip("/"))
    except urllib.error.HTTPError as error:
        print(f"{master} refuses {body}: {error.read().decode(errors='replace')}", file=sys.stderr)
    except OSError as error:
        print(f"{master} cannot be reached: {error}", file=sys.stderr)
    return 1


def _wait(master: str, url: str) -> int:
    deadline, error = time.monotonic() + WAIT_S, "it was removed"
    while time.monotonic() < deadline:
        for shown in json.loads(_call(master))["instances"]:
            if shown["url"].rstrip("/") == url:
                if shown["healthy"]:
                    return 0
                error = shown["error"] or "no answer yet"
        time.sleep(_POLL_S)
    print(f"{url} is not up after {WAIT_S:g} s: {error}", file=sys.stderr)
    return 1


def _call(master: str, body: bytes | None = None) -> bytes:
    headers = {"content-type": "application/json", "x-api-key": os.environ["ADMIN_API_KEY"]}
    request = urllib.request.Request(f"{master}/instances", body, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return bytes(response.read())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
