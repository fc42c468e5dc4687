"""The tiny pipeline for machines without a GPU: four real stages over a model of a few hundred kilobytes."""
