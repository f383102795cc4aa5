"""What is true: data with sources, no arithmetic."""
