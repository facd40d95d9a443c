//! The subcommands, a file each.

pub(crate) mod acl;
pub(crate) mod detached;
pub(crate) mod doctor;
pub(crate) mod free;
pub(crate) mod lead;
pub(crate) mod ls;
pub(crate) mod monitor;
pub(crate) mod run;
pub(crate) mod show;
pub(crate) mod wait;
