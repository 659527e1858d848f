"""Networks: their links, the routes of messages over them, and how messages that share a link share its time."""
