"""What a trained model says: scores of any images, labels that are missing, files for others."""
