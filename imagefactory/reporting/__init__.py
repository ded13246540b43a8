"""Reporting: images and their verifications for readers, as Markdown and as pages of HTML."""
