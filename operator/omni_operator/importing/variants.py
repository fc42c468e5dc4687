"""Finds the catalogue's pipeline for upstream's names of it."""

from __future__ import annotations

from functools import cache

from omni_operator.catalogue import Pipeline, Variant, known_models, pipelines
from omni_operator.importing.notes import ImportProblem


@cache
def by_config_class() -> dict[str, tuple[Pipeline, Variant]]:
    """Pipelines and variants by the name of upstream's class. The default variant wins where several share a class."""
    result: dict[str, tuple[Pipeline, Variant]] = {}
    for pipeline in pipelines().values():
        for variant in sorted(pipeline.variants.values(), key=lambda v: v.name == pipeline.default_variant):
            result[variant.config_class] = (pipeline, variant)
    return result


def find(config_class: str | None, model: str | None) -> tuple[Pipeline, Variant] | None:
    """The pipeline of a class or, where a file names none, of a known model."""
    if config_class is not None:
        return by_config_class().get(config_class)
    known = known_models().get((model or "").lower())
    if known is None or known.pipeline not in pipelines():
        return None
    pipeline = pipelines()[known.pipeline]
    return pipeline, pipeline.variants[known.variant or pipeline.default_variant]


def chosen(pipeline: str | None, variant: str | None) -> tuple[Pipeline, Variant] | None:
    """The pipeline that the user names. Raises ImportProblem where the catalogue has none of that name."""
    if pipeline is None:
        return None
    found = pipelines().get(pipeline)
    if found is None:
        raise ImportProblem(f"the catalogue has no pipeline {pipeline!r}; it has {', '.join(pipelines())}")
    name = variant or found.default_variant
    if name not in found.variants:
        raise ImportProblem(f"pipeline {pipeline} has no variant {name!r}; it has {', '.join(found.variants)}")
    return found, found.variants[name]
