//! Which certificates a connection goes by.
//!
//! Nothing of a key is shown.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Which certificates a connection goes by.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    /// Set if they are trusted in place of the public authorities.
    pub(crate) roots: Option<Pem>,
    /// What we show of ourselves, with those that it is signed by.
    pub(crate) own: Option<Pem>,
    /// The key of that.
    pub(crate) key: Option<Pem>,
}

/// Where a PEM is.
#[derive(Clone)]
pub(crate) enum Pem {
    Text(Arc<[u8]>),
    File(PathBuf),
}

impl fmt::Debug for Certificates {
    /// Says which there are, and shows none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { roots, own, key } = self;
        f.debug_struct("Certificates").field("roots", roots).field("own", own).field("key", key).finish()
    }
}

impl Pem {
    pub(crate) fn text(pem: impl Into<Vec<u8>>) -> Self {
        Self::Text(pem.into().into())
    }
}

impl fmt::Debug for Pem {
    /// Shows no text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("…"),
            Self::File(path) => fmt::Debug::fmt(path, f),
        }
    }
}
