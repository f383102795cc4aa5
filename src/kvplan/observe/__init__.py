"""What running engines say of themselves: start-up logs, read into figures with their units."""
