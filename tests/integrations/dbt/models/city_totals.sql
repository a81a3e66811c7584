select city, sum(total) as total, count(*) as customers from {{ ref("customer_totals") }} group by city
