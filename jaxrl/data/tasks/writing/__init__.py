"""Tasks whose answers are texts of a form."""
