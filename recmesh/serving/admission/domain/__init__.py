"""The rules of admission and of choosing an HN, pure: time and randomness are arguments, nothing is sent here."""
