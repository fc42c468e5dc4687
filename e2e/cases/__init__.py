"""End-to-end cases: the operator from its image, on a real node with invented GPUs; each asserts the world."""
