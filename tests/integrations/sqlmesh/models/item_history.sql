MODEL (name shop.item_history, kind SCD_TYPE_2_BY_COLUMN (unique_key item, columns [amount]));
SELECT item, amount FROM shop.items
