"""Who has not installed PostgreSQL's drivers is told how to; nothing else needs them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

URL = "postgresql://nobody@localhost/nothing"
WITHOUT = "import sys; sys.modules.update(dict.fromkeys(['psycopg', 'adbc_driver_postgresql', 'numpy']));"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("wlc", ["master", URL]),
        ("wlc", ["run", URL]),
        ("wlc", ["status", URL]),
        ("wlr", ["replicate", "sales", "--farm", "farm", "--into", URL]),
        ("wlr", ["status", URL]),
    ],
)
def test_the_extra_is_named(command: str, arguments: list[str]) -> None:
    code = f"{WITHOUT} from cli.{command} import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    # A command that goes on writes its errors as lines of a log.
    assert re.search("error:? PostgreSQL needs packages that are not installed", done.stderr)
    assert "hint: pip install 'dbfarm[postgres]'" in done.stderr
    assert "Traceback" not in done.stderr
