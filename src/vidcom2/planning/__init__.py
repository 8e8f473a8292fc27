"""Which GPUs a model needs for a load: `vidcom2 plan`. Everything here is computed from sizes; nothing is measured."""
