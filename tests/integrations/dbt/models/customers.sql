{{ config(materialized="view") }}
select id as customer_id, name, city, cast(since as date) as since from {{ ref("raw_customers") }}
