"""From the OCI layout into a node: only images that changed, and of those only the layers that the node lacks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from e2e.cluster.node import Cluster
from e2e.cluster.progress import Progress
from e2e.images.build import Recipe
from e2e.images.layout import Layout


def load(cluster: Cluster, layout: Layout, recipes: Iterable[Recipe], progress: Progress) -> None:
    """Make the images known to the node's containerd under their names."""
    present = cluster.images.present()
    manifests = layout.manifests()
    for recipe in recipes:
        if present.get(recipe.name) == manifests[recipe.tag]["digest"]:
            continue
        with progress.step(f"loading {recipe.name} into {cluster.instance.node_name}"):
            write = partial(layout.write_archive, recipe.tag, recipe.name, cluster.images.blobs())
            cluster.images.load_stream(write)
            cluster.images.forget_unnamed()
