//! Reads the documents of the project for the tests that keep them true.
//!
//! Owns what a snippet and its marks are, which class a snippet belongs to, where links lead, and which pages' Rust the
//! compiler sees. Does not own the checks of links (`cargo xtask book`), and does not run shell: the tests of the
//! program do.
//!
//! 1. Each fenced block of a document belongs to exactly one [`Class`]. A block without one is an error that says what to
//!    write.
//! 2. A mark is an HTML comment directly before a block. A comment there that is no mark is an error.

mod class;
mod document;
mod links;
mod output;
mod quote;
mod shell;
mod snippet;

#[cfg(doctest)]
mod pages;

pub use class::{Class, classify};
pub use document::{Document, documents, root};
pub use links::{Link, anchors, code_spans, links};
pub use output::difference;
pub use quote::check_quote;
pub use shell::commands;
pub use snippet::{Mark, Snippet, snippets};
