"""What to do about it: what deployments cost, which meet their goals, and which are worth a look."""
