"""Settings for every test."""

from __future__ import annotations

from hypothesis import settings

# Two busy cores make any example slow now and then; time is measured by the benchmarks only.
settings.register_profile("dbfarm", deadline=None)
settings.load_profile("dbfarm")
