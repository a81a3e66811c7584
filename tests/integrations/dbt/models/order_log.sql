{{ config(materialized="incremental", incremental_strategy="append") }}
select order_id, day, total from {{ ref("orders") }}
{% if is_incremental() %} where day > (select max(day) from {{ this }}) {% endif %}
