//! Why an operation failed: one type per operation, each with the cases that it can have.
//!
//! `?` converts all of them into [`Error`](crate::Error), which is at the root of the crate. The errors of what is in
//! a module of its own are there: a store's in [`store`](crate::store), those of WATCH in `optimistic`.
//!
//! | Type | Returned by |
//! |---|---|
//! | [`ConnectError`] | connecting a [`Client`](crate::Client) |
//! | [`LockError`] | creating a handle from a name and settings, such as [`Client::mutex`](crate::Client::mutex) |
//! | [`AcquireError`] | every kind of acquire |
//! | [`LostHold`] | [`Guard::check`](crate::Guard::check) |
//! | [`ExtendError`] | extending a hold |
//! | [`ReleaseError`], [`MultiReleaseError`] | releasing one hold, or those of several locks. [`Unreleased`] tries again |
//! | [`RunError`] | [`Mutex::run`](crate::Mutex::run), and the same of other kinds |
//! | [`ConversionError`] | changing the mode of an [`RwLock`](crate::RwLock)'s hold |
//! | [`ProclaimError`] | [`Leadership::proclaim`](crate::Leadership::proclaim) |
//! | [`ResizeError`], [`ReturnPermitsError`] | changing the number of a [`Semaphore`](crate::Semaphore)'s permits, and returning some |
//! | [`InspectError`] | reading the state of locks and sessions: see [`inspect`](crate::inspect) |
//! | [`ForceReleaseError`] | [`Mutex::force_release`](crate::Mutex::force_release), and the same of other kinds |
//! | [`AttachError`], [`DetachedTextError`] | turning a [`DetachedHold`](crate::DetachedHold) into a guard, and reading one from text |
//! | [`ShutdownError`], [`UnreleasedLock`] | [`Client::shutdown`](crate::Client::shutdown), and the locks that it left |
//! | `StopError` | `Client::shutdown_on_signal`, with the feature `signal` |
//! | [`NameError`], [`KeyError`], [`LabelError`], [`LeaseError`], [`OwnerError`], [`OwnValueError`] | values that are not valid: lock names, keys, labels, leases, owners, values of a lock's key |
//! | [`Refused`] | a part of several errors: why a store refused a request |
//!
//! That a lock is taken is no error of a single attempt: see [`Attempt`](crate::Attempt). A fault of the store is a
//! [`store::Fault`](crate::store::Fault), and a part of most of these errors. Calls of the
//! [blocking API](crate::blocking) wrap these errors in [`blocking::Error`](crate::blocking::Error).
//!
//! The messages are fragments that read well after "failed to acquire `orders/42`: ". None of them contains a
//! token or a password.

pub(crate) mod any;
mod operation;

#[cfg(feature = "signal")]
pub use crate::client::stop::StopError;
pub use crate::engine::{ShutdownError, UnreleasedLock};
pub use crate::guard::attach::AttachError;
pub use crate::guard::detached::DetachedTextError;
pub use crate::guard::owner::OwnerError;
pub use crate::guard::unreleased::{ReleaseError, Unreleased};
pub use crate::lock::rwlock::guards::ConversionError;
pub use leasehold_core::{KeyError, LabelError, LeaseError, NameError, OwnValueError, Refused};
pub use operation::{
    AcquireError, ConnectError, ExtendError, ForceReleaseError, InspectError, LockError, LostHold,
    MultiReleaseError, ProclaimError, ResizeError, ReturnPermitsError, RunError,
};
