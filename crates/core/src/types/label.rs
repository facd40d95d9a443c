//! Texts that people read or supply: the label of a holder, and user-defined values.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

macro_rules! text {
    ($(#[$doc:meta])* $type:ident, $error:ident, $what:literal, $max:literal, empty: $empty:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(Arc<str>);

        impl $type {
            #[doc = concat!("The longest ", $what, ", in bytes.")]
            pub const MAX_LEN: usize = $max;

            #[doc = concat!("Parses ", $what, ": no control characters, at most [`Self::MAX_LEN`] bytes.")]
            pub fn new(text: impl AsRef<str>) -> Result<Self, $error> {
                let text = text.as_ref();
                if (!$empty && text.is_empty())
                    || text.len() > Self::MAX_LEN
                    || text.chars().any(char::is_control)
                {
                    return Err($error { len: text.len() });
                }
                Ok(Self(text.into()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = $error;

            fn try_from(text: String) -> Result<Self, $error> {
                Self::new(text)
            }
        }

        impl From<$type> for String {
            fn from(text: $type) -> Self {
                text.0.as_ref().to_owned()
            }
        }

        #[doc = concat!("A text that is not ", $what, ".")]
        ///
        /// ```
        #[doc = concat!("use leasehold_core::", stringify!($error), ";")]
        ///
        #[doc = concat!("let error = ", stringify!($error), " { len: 300 };")]
        /// assert!(error.to_string().ends_with("this text of 300 bytes is none"));
        /// ```
        #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
        #[error("{} has no control characters and at most {} bytes; this text of {len} bytes is none", $what, $max)]
        pub struct $error {
            /// The length of the text, in bytes.
            pub len: usize,
        }
    };
}

text! {
    /// A short description of a holder for people to read. Never a secret.
    ///
    /// ```
    /// let label = leasehold_core::Label::new("web-3/4711/billing")?;
    /// assert_eq!(label.to_string(), "web-3/4711/billing");
    /// # Ok::<(), leasehold_core::LabelError>(())
    /// ```
    Label, LabelError, "a label", 256, empty: true
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

text! {
    /// A user-defined value at the lock's key, in place of the hold id.
    ///
    /// A client that knows it can end the hold, so `Debug` does not show it.
    ///
    /// ```
    /// use leasehold_core::OwnValue;
    ///
    /// let value = OwnValue::new("worker-7")?;
    /// assert_eq!(value.as_str(), "worker-7");
    /// assert_eq!(format!("{value:?}"), "OwnValue(…)");
    /// # Ok::<(), leasehold_core::OwnValueError>(())
    /// ```
    OwnValue, OwnValueError, "a value of one's own", 256, empty: false
}

impl fmt::Debug for OwnValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnValue(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_bounds() {
        assert!(Label::new("").is_ok());
        assert!(OwnValue::new("").is_err());
        assert!(Label::new("a\nb").is_err());
        assert_eq!(Label::new("x".repeat(257)), Err(LabelError { len: 257 }));
        assert!(!format!("{:?}", OwnValue::new("hunter2").expect("a plain text")).contains("hunter2"));
    }
}
