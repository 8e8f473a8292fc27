"""Five compression methods as users would write them, one of each kind that the interface is for."""
