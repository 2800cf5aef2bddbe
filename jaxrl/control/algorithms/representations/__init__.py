"""Models of the world, occupancies, skills and intrinsic rewards."""
