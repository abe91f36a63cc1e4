"""Real runs on the machine at hand, and what they tell the models."""
