"""What is known of pipelines, models and cards, as data files that nothing here changes."""

from omni_operator.catalogue.cards import Card, cards
from omni_operator.catalogue.pipelines import KnownModel, Pipeline, StageDefault, Variant, known_models, pipelines

__all__ = ["Card", "KnownModel", "Pipeline", "StageDefault", "Variant", "cards", "known_models", "pipelines"]
