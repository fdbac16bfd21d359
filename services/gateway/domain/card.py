"""What an exported model says of itself: `recmesh.serving` owns it, since CN and HN read it too."""

from recmesh.serving.card import FRAMEWORKS, PLATFORMS, RAGGED_KINDS, ModelCard, TensorSpec

__all__ = ["FRAMEWORKS", "PLATFORMS", "RAGGED_KINDS", "ModelCard", "TensorSpec"]
