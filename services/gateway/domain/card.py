"""What an exported model says of itself: `recmesh.serving` owns it, since CN and HN read it too."""

from recmesh.serving.card import ENSEMBLE, FRAMEWORKS, PLATFORMS, RAGGED_KINDS, ModelCard, TensorSpec

__all__ = ["ENSEMBLE", "FRAMEWORKS", "PLATFORMS", "RAGGED_KINDS", "ModelCard", "TensorSpec"]
