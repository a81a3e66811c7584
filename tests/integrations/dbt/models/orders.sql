-- The variable is the last day that has arrived.
select o.id as order_id, o.customer_id, o.item_id, o.amount, cast(o.day as date) as day, o.amount * i.price as total
from {{ ref("raw_orders") }} o
join {{ ref("items") }} i on o.item_id = i.item_id
where cast(o.day as date) <= cast('{{ var("day", "2026-10-10") }}' as date)
