//! What a lease-held lock means.
