import typing as t
from datetime import datetime

import pandas as pd
from sqlmesh import ExecutionContext, model


@model("shop.shares", kind="FULL", columns={"item": "text", "share": "double"})
def execute(
    context: ExecutionContext, start: datetime, end: datetime, execution_time: datetime, **kwargs: t.Any
) -> pd.DataFrame:
    items = context.fetchdf(f"SELECT item, amount FROM {context.resolve_table('shop.items')}")
    return pd.DataFrame({"item": items["item"], "share": items["amount"] / items["amount"].sum()})
