"""How a server is started: one model of its container, and the forms that it is written in."""
