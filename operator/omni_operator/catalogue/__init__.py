"""What is known of pipelines, models and cards: data files that nothing here changes, and a model's own folder."""

from omni_operator.catalogue.cards import Card, cards, cards_without_memory
from omni_operator.catalogue.layouts import TriedLayout, TriedStage, layouts_for, tried_layouts
from omni_operator.catalogue.pipelines import KnownModel, Pipeline, StageDefault, Variant, known_models, pipelines
from omni_operator.catalogue.shapes import KvShape
from omni_operator.catalogue.sizes import Component, ModelSize, model_sizes

__all__ = [
    "Card",
    "Component",
    "KnownModel",
    "KvShape",
    "ModelSize",
    "Pipeline",
    "StageDefault",
    "TriedLayout",
    "TriedStage",
    "Variant",
    "cards",
    "cards_without_memory",
    "known_models",
    "layouts_for",
    "model_sizes",
    "pipelines",
    "tried_layouts",
]
