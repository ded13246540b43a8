"""The matrix: the images to build, as ``matrix.yaml`` declares them."""
