"""Models: those on this machine, those on the hub, and how the one becomes the other."""
