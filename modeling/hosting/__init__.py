"""What ties our classes to Transformers: its names, its tables of classes, its calls, and the pipeline for videos."""
