"""SQLMesh: plan and apply, a virtual environment, changed models and seeds, and a restatement, in the current folder."""

from pathlib import Path

from sqlmesh import Context
from sqlmesh.core.console import NoopConsole, set_console


def plan(environment: str | None = None, **options: object) -> Context:
    context = Context(paths=".")
    context.plan(environment, auto_apply=True, no_prompts=True, **options)
    return context


def edit(path: str, old: str, new: str) -> None:
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new, 3))


set_console(NoopConsole())
plan()
edit("models/sales_by_day.sql", "AS amount\n", "AS amount, COUNT(*)::INT AS orders\n")
plan("dev", include_unmodified=True)
edit("seeds/orders.csv", ",2026-10-05", ",2026-10-06")
plan()
context = plan(restate_models=["shop.sales_by_day"], start="2026-10-03", end="2026-10-06")
context.run(ignore_cron=True)
context.invalidate_environment("dev", sync=True)
for name in ("shop.items", "shop.item_history", "shop.totals", "shop.best", "shop.shares", "shop.sales_by_day"):
    shown = context.fetchdf(f"SELECT * FROM {name} ORDER BY ALL")
    print(shown.drop(columns=["valid_from", "valid_to"], errors="ignore").to_csv())
context.close()
