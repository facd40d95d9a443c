//! The subcommands, a file each.

pub(crate) mod acl;
pub(crate) mod acquire;
pub(crate) mod doctor;
pub(crate) mod extend;
pub(crate) mod free;
pub(crate) mod lead;
pub(crate) mod ls;
pub(crate) mod monitor;
pub(crate) mod release;
pub(crate) mod run;
pub(crate) mod show;
pub(crate) mod wait;
