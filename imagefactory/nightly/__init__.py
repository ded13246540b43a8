"""One unattended night: from what is new upstream to a moving tag on a verified image."""
