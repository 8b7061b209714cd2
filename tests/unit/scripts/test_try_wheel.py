"""scripts/try_wheel.sh: its steps, with stand-ins for pip and for what the wheel brings."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
PYTHON = """#!/bin/sh
case "$2" in
pip) for last; do :; done
    test -f "$last/pyproject.toml" && touch "$7/triptych-1.0-py3-none-any.whl" ;;
venv) mkdir -p "$3/bin"
    printf '#!/bin/sh\\necho "installed: $*"\\n' >"$3/bin/pip"
    printf '#!/bin/sh\\necho "in $PWD of $HOME: $*"\\n' >"$3/bin/triptych"
    chmod +x "$3/bin/pip" "$3/bin/triptych" ;;
esac
"""


def test_the_wheel_is_built_installed_and_served_outside_of_the_checkout(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(PYTHON)
    program.chmod(0o755)
    env = {**os.environ, "PYTHON": str(program), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "try_wheel.sh"), "--num-p", "0"],
        cwd="/", env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = re.sub(rf"{tmp_path}/[^/ ]+", "TMP", re.sub(r"\d+ s$", "N s", done.stdout, flags=re.M))
    assert said.splitlines() == [
        "build the wheel: N s",
        "installed: install --quiet --disable-pip-version-check"
        " TMP/triptych-1.0-py3-none-any.whl[worker]",
        "install it into an empty environment: N s",
        "in TMP/empty of TMP/home: serve --ask --no-keep-running --num-p 0",
        "serve, answer, end: N s",
    ]
    assert list(tmp_path.iterdir()) == [program], "nothing is left"
