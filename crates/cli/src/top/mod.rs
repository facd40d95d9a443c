//! The screen of `leasehold top`.
//!
//! [`app`] is what the user sees and does, without IO; [`draw`] draws it; [`run`] connects it with the terminal, the store and
//! the signals. What is known of the locks comes from [`crate::fleet`].

mod app;
mod draw;
mod run;
mod terminal;
#[cfg(test)]
mod tests;
mod text;

pub(crate) use run::run;
