"""vLLM wheels that are built from source."""
