"""The scenario: the one input of bounds, mechanisms, what-ifs, reports and exports."""
