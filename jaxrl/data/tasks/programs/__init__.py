"""Tasks whose answers are programs, patches or queries."""
