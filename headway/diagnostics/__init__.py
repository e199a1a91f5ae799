"""What is measured on a model: numbers only, the model is left as it was."""
