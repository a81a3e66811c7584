MODEL (name shop.orders, kind SEED (path '../seeds/orders.csv'), columns (id INT, item TEXT, amount INT, day DATE));
