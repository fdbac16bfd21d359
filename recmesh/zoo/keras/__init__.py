"""Models in Keras: Wide & Deep, DeepFM, xDeepFM, DCN-v2. All give probabilities [B, labels]."""
