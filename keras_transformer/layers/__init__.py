"""The layers of the Transformer, on `keras` and `keras.ops` only."""
