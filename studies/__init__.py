"""The studies that ship with probe: one file, one question each."""
