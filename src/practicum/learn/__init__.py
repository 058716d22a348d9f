"""Learning: advantages, losses, samples, the curriculum, and the stages that use them."""
