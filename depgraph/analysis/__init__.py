"""What is concluded: bounds, mechanisms beside each other, stores beside each other, studies."""
