"""Finding and loading a checkpoint, and making a loaded model ours."""
