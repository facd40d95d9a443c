//! The certificates and the key of a TLS connection.
//!
//! `Debug` output shows no part of them.

use rustls::ClientConfig;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The certificates and the key of a TLS connection.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    /// Set if they are trusted in place of the public authorities.
    pub(crate) roots: Option<Pem>,
    /// The client's certificate, with the chain of its authorities.
    pub(crate) own: Option<Pem>,
    /// The private key of the client's certificate.
    pub(crate) key: Option<Pem>,
    /// What the files contained when they could be used last. Clones share it.
    last_good: Arc<Mutex<Option<Arc<ClientConfig>>>>,
}

impl Certificates {
    /// Changes the certificates.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        // What earlier files contained is not a substitute for the new ones.
        self.last_good = Arc::default();
    }

    /// Remembers settings that can be used.
    pub(crate) fn remember(&self, settings: &Arc<ClientConfig>) {
        *self.last_good.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(settings));
    }

    /// The last settings that could be used.
    pub(crate) fn last_good(&self) -> Option<Arc<ClientConfig>> {
        self.last_good.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Source of a PEM text.
#[derive(Clone)]
pub(crate) enum Pem {
    Text(Arc<[u8]>),
    File(PathBuf),
}

impl fmt::Debug for Certificates {
    /// Shows which are set, and no content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { roots, own, key, last_good: _ } = self;
        f.debug_struct("Certificates").field("roots", roots).field("own", own).field("key", key).finish()
    }
}

impl Pem {
    pub(crate) fn text(pem: impl Into<Vec<u8>>) -> Self {
        Self::Text(pem.into().into())
    }
}

impl fmt::Debug for Pem {
    /// Shows the path, and no content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("…"),
            Self::File(path) => fmt::Debug::fmt(path, f),
        }
    }
}
