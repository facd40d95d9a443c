//! The program as its users meet it: arguments, exit statuses, signals, and what becomes of the command
//! when the lock is lost. Every test has its own directory, store and commands.

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
