"""Offline data of control: readers into one type, mixes, statistics, corruptions. NumPy alone."""
