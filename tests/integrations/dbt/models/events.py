def model(dbt, session):
    dbt.config(materialized="incremental", incremental_strategy="delete+insert", unique_key="order_id")
    orders = dbt.ref("orders")
    if dbt.is_incremental:
        orders = orders.filter(f"day >= (select max(day) from {dbt.this})")
    return orders.project("order_id, day, {'item': item_id, 'amounts': [amount, amount * 2]} as details")
