"""Column types: how a column of a table becomes features. ``registry.py`` lists them."""
