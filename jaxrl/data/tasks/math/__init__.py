"""Tasks of numbers and of reasoning generators."""
