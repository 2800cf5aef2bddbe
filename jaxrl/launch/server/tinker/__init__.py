"""The Tinker API on one's own devices: training and sampling by requests of a client's loop."""
