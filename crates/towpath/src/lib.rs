//! A user-space network datapath for Linux: ports by URI, workers, routes.
