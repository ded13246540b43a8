"""The matrix: what images there are, as ``matrix.yaml`` declares them."""
