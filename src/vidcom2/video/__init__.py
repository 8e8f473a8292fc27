"""Video files: opening, finding and decoding the frames that are wanted."""
