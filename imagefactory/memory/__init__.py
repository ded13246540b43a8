"""How much memory a model needs on a Spark, and which settings of vLLM follow. Pure."""
