{{ config(materialized="incremental", incremental_strategy="delete+insert", unique_key="day") }}
select day, count(*) as orders, sum(total) as total from {{ ref("orders") }}
{% if is_incremental() %} where day >= (select max(day) from {{ this }}) {% endif %}
group by day
