"""One command to run: a private PostgreSQL and Valkey, the web process, workers and beat under one supervisor."""
