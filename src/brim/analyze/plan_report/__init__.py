"""A plan as a page, a picture and a table."""
