"""Large models on meshes that are not there."""
