//! A ReentrantMutex.

mod cancelled;
mod fixture;
mod holds;
mod identity;
mod wait_queue;
