"""Networks of control: pure functions over plain dicts of arrays, small and vmapped over seeds."""
