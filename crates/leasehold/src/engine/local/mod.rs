//! What the tasks of this process share for one lock: its entry, their queue, and hand-offs from one to the next.

pub(super) mod lock_entry;
pub(super) mod lock_table;
pub(super) mod reentrant_bypass;
pub(super) mod wait_queue;
