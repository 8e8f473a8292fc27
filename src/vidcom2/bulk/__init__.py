"""Many questions about many videos: requests, and the engines that answer them."""
