"""A report on a database of the farm: the facts, and a page that shows them."""
