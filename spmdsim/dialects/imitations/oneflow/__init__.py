"""OneFlow's view of a redistribution ("boxing"), its operators' signatures, and what its ranks agree about."""
