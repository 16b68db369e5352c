"""Domain data: reading images, dealing them to clients, looking at them."""
