"""What strategies cost: operators, moves between layouts, gradients, memory."""
