//! The program as its users run it: arguments, exit statuses, signals, and the loss of a lock. Every test has its own
//! directory, store and commands.

mod acl;
mod admin;
mod advise;
mod board;
mod browser;
mod daemon;
mod damaged;
mod default_store;
mod detached;
mod doctor;
mod engines;
mod findings;
mod fixture;
mod full_output;
mod graph;
mod init;
mod lead;
mod limits;
mod listing;
mod loss;
mod misuse;
mod once;
mod pty;
mod reentrant;
mod run;
mod secrets;
mod sharing;
mod show;
mod signal_table;
mod signals;
mod terminal;
mod top;
mod unreachable;
mod waiting;
mod wrong_lines;
