"""Building: planned cells become images in the engine."""
