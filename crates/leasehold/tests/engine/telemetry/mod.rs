//! What observers, figures, metrics and spans show.

mod callbacks;
mod events;
mod fixture;
mod metrics;
mod spans;
