"""Tells others how the service is: a command is run when something fails, a URL is asked for while all is well."""

from __future__ import annotations

import logging
import os
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from wlc.farm.errors import FarmError
from wlr.service.schedule import class_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wlr.service.job_states import WorkStanding
    from wlr.service.settings import ServiceOptions

log = logging.getLogger("wlr.service")

# What the command gets of the service's own environment, which may hold credentials.
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "TMPDIR")
_HEARTBEAT_LIMIT_S = 10.0


def failure_environment(standing: WorkStanding, error: Exception, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the command: a few variables of the service's own, and what failed."""
    hint = error.hint if isinstance(error, FarmError) else None
    return {
        **{name: environment[name] for name in _PASSED_ON if name in environment},
        "DBFARM_ITEM": standing.item,
        "DBFARM_WORK": standing.work,
        "DBFARM_CLASS": class_of(error),
        "DBFARM_MESSAGE": str(error).replace("\0", ""),
        "DBFARM_HINT": (hint or "").replace("\0", ""),
    }


def run_on_failure(options: ServiceOptions, standing: WorkStanding, error: Exception) -> None:
    """Run the owner's command, for a bounded time; that it fails is a log line and nothing else."""
    limit_s = options.on_failure_limit.total_seconds()
    try:
        done = subprocess.run(  # noqa: S603 - the owner's own command, without a shell
            options.on_failure,
            env=failure_environment(standing, error, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        log.warning("on_failure took more than %g s and was ended", limit_s)
    except (OSError, ValueError) as problem:
        log.warning("on_failure cannot be run: %s", problem)
    else:
        if done.returncode:
            log.warning("on_failure ended with %d", done.returncode)


def send_heartbeat(url: str) -> str:
    """Ask for a URL; return why that failed, or nothing. The URL is shown nowhere: it is often a secret."""
    try:
        with urllib.request.urlopen(url, timeout=_HEARTBEAT_LIMIT_S) as answer:  # noqa: S310 - the file allows http(s)
            answer.read(1)
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None)
        return type(reason if isinstance(reason, Exception) else error).__name__
    return ""
