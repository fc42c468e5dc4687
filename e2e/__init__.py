"""What the end-to-end tests stand on: a real cluster, invented GPUs and container images, each made on the spot."""
