{{ config(materialized="incremental", incremental_strategy="merge", unique_key="customer_id") }}
select c.customer_id, c.city, count(o.order_id) as orders, coalesce(sum(o.total), 0) as total
from {{ ref("customers") }} c
left join {{ ref("orders") }} o on o.customer_id = c.customer_id
group by c.customer_id, c.city
