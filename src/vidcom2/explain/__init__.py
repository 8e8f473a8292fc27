"""What is kept of a video, as a picture or a page."""
