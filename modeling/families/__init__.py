"""This room holds the families of models, each as its difference from the parent classes."""
