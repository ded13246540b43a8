"""Makes base images from Debian packages without running any of their programs."""
