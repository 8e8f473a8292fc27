"""The tools that build, publish and verify Hub repos. They are never shipped to these repos."""
