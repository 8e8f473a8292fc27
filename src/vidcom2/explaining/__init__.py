"""Showing which tokens of a video are kept, as a picture or a page."""
