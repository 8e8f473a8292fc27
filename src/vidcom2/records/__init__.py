"""What a run writes and reads again: rows, whose run it is, where figures come from."""
