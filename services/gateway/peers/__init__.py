"""Calls to the other services. Answers are JSON documents with the messages' field names."""
