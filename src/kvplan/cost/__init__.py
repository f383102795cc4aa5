"""What it costs: pure formulas of plain numbers."""
