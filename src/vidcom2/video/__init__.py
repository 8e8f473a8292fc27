"""Reading video files: opening them, and finding and decoding the frames that are wanted."""
