MODEL (name shop.best, kind VIEW);
SELECT item FROM shop.items ORDER BY amount DESC LIMIT 1
