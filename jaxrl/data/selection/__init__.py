"""Which problems, domains and rollouts a step trains on."""
