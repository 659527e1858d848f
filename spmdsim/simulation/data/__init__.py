"""What calls are given and give back, apart from any rank: buffers, datatypes, objects, operations, status."""
