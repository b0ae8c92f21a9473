"""Whether a result is what it says: run again from its manifest and compared, metric by metric; and two results beside
each other. Nothing here can change a number.
"""
