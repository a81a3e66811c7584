{{ config(materialized="view") }}
select id as item_id, item, price from {{ ref("raw_items") }}
