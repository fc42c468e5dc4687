"""Invented GPUs: a DRA kubelet plugin that publishes and prepares GPUs which do not exist, as NVIDIA's driver does.

Its model is https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu, whose names, attributes, configuration and errors
it keeps, so that what works here works there. Nothing computes: a container gets what the real driver would inject, and
beside it `/run/invented-gpus/`, which says that its GPUs are invented and which they are.
"""
