"""Makes the layers below an image's patches: its base, its wheels and its compilers."""
