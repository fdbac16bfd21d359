"""What gateway keeps: model records in JetStream KV; model folders and user code on storage."""
