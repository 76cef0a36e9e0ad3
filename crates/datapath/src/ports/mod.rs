//! The ports. Each is a module with a `Config` (plain, with `Default`, and `from_uri`), an `open`, and the queues.
