MODEL (name shop.items, kind INCREMENTAL_BY_UNIQUE_KEY (unique_key item));
SELECT item, MAX(day) AS last_day, SUM(amount)::INT AS amount FROM shop.sales_by_day GROUP BY item
