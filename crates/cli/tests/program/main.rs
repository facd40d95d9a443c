//! The program as its users run it: arguments, exit statuses, signals, and the loss of a lock. Every test has its own
//! directory, store and commands.

mod acl;
mod detached;
mod doctor;
mod engines;
mod hands;
mod init;
mod lead;
mod loss;
mod misuse;
mod once;
mod reentrant;
mod run;
mod scene;
mod secrets;
mod sharing;
mod show;
mod signals;
mod terminal;
