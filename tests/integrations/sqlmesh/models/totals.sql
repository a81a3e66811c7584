MODEL (name shop.totals, kind FULL);
SELECT COUNT(*)::INT AS items, SUM(amount)::INT AS amount FROM shop.items
