"""Live video: a stream of any length, kept in bounded memory, about which questions can be asked at any time."""
