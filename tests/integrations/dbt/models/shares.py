def model(dbt, session):
    dbt.config(materialized="table")
    totals = dbt.ref("city_totals").df()
    totals["share"] = totals["total"].astype(float) / float(totals["total"].sum())
    return totals
