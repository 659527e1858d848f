"""What a finding is, where it points, and how faults of single messages and collectives are said."""
