"""Between the domain and what travels: protobuf messages, the inference protocol's JSON."""
