"""From the OCI layout into the nodes: only images that changed, and of those only the layers that a node lacks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from e2e.cluster.cluster import Cluster
from e2e.cluster.node import Node
from e2e.cluster.progress import Progress
from e2e.images.build import Recipe
from e2e.images.layout import Layout


def load(cluster: Cluster, layout: Layout, recipes: Sequence[Recipe], progress: Progress) -> None:
    """Make the images known to the containerd of every node under their names."""
    for node in cluster.nodes:
        _load(node, layout, recipes, progress)


def _load(node: Node, layout: Layout, recipes: Sequence[Recipe], progress: Progress) -> None:
    present = node.images.present()
    manifests = layout.manifests()
    for recipe in recipes:
        if present.get(recipe.name) == manifests[recipe.tag]["digest"]:
            continue
        with progress.step(f"loading {recipe.name} into {node.name}"):
            write = partial(layout.write_archive, recipe.tag, recipe.name, node.images.blobs())
            node.images.load_stream(write)
            node.images.forget_unnamed()
