"""Wait until a URL answers 200: `wait_for_url.py URL PID SECONDS`; PID is the process behind it.

Exit status 1 if that process ends first or the time is up. Standard library only.
"""

import http.client
import os
import sys
import time
import urllib.error
import urllib.request


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException, urllib.error.URLError):
        return False


def main() -> int:
    url, pid, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and alive(pid):
        if answers(url):
            return 0
        time.sleep(0.1)
    return 1


if __name__ == "__main__":
    sys.exit(main())
