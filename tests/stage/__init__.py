"""Tests of the stage container. Without torch; those marked `stage` need the stage environment."""
