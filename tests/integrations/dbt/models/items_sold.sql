{{ config(
    materialized="incremental", incremental_strategy="merge", unique_key=["item_id", "day"],
    on_schema_change="append_new_columns", merge_exclude_columns=["first_run"]
) }}
select item_id, day, sum(amount) as amount, '{{ var("day", "2026-10-10") }}' as first_run
    {% if var("more", false) %}, max(total) as largest {% endif %}
from {{ ref("orders") }}
group by item_id, day
