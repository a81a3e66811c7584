MODEL (
  name shop.sales_by_day,
  end '2026-10-10',
  kind INCREMENTAL_BY_TIME_RANGE (time_column day, batch_size 4)
);
SELECT day, item, SUM(amount)::INT AS amount
FROM shop.orders
WHERE day BETWEEN @start_date AND @end_date
GROUP BY day, item
