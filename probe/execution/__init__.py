"""Where cells are computed: in this process, in others on this machine, or on a Ray cluster, with the same results."""
