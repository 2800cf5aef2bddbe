"""What training does to weights, and merging them."""
