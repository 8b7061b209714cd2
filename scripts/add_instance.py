"""Tell a master, or a proxy without one, of a worker that cannot register by itself.

ADMIN_API_KEY=KEY python scripts/add_instance.py http://HOST:PORT '{"role": "decode", "url": …}'
"""

import os
import sys
import urllib.error
import urllib.request


def main(url: str, body: str) -> int:
    """Exit status: 1 if the worker was refused."""
    headers = {"content-type": "application/json", "x-api-key": os.environ["ADMIN_API_KEY"]}
    request = urllib.request.Request(f"{url}/instances", body.encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30):
            return 0
    except urllib.error.HTTPError as error:
        print(f"{url} refuses {body}: {error.read().decode(errors='replace')}", file=sys.stderr)
    except OSError as error:
        print(f"{url} cannot be reached: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
