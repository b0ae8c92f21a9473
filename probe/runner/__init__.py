"""Studies: functions that ask one question, and the runner that keeps their results."""
