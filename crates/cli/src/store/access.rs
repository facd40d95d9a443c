//! How the store is reached: its URL and its login, from the options and the environment.

use crate::environment::{USERNAME, variable};
use crate::output::error_map::connect_failure;
use crate::output::failure::Failure;
use crate::store::args::StoreArgs;
use crate::store::default_file::DefaultFile;
use crate::store::password::{self, Password};
use crate::store::url;
use leasehold::store::StoreUrl;

/// All that is needed to connect to the store. It may contain passwords.
pub(crate) struct Access {
    /// The URL as it was given.
    pub(crate) text: String,
    pub(crate) url: StoreUrl,
    /// Set if the password was given apart from the URL.
    pub(crate) password: Option<Password>,
    /// Set if the user was given apart from the URL.
    pub(crate) username: Option<String>,
    /// Set if the prefix was given apart from the URL.
    pub(crate) prefix: Option<String>,
    /// Set if the user has named no store.
    pub(crate) is_default: bool,
}

impl Access {
    /// Reads the options and the environment. May read standard input.
    pub(crate) fn from_args(args: &StoreArgs) -> Result<Self, Failure> {
        let named = url::named(args)?;
        let is_default = named.is_none();
        let (text, url) = named.map_or_else(default_url, Ok)?;
        url::check_shared(&url)?;
        let password = password::for_store(args, &url)?;
        // A variable in the environment may be meant for other stores.
        let username = if url.supports_credentials() { variable(USERNAME)? } else { None };
        Ok(Self { text, url, password, username, prefix: args.prefix.clone(), is_default })
    }
}

/// The URL of the store if the user has named none. Its directory exists.
fn default_url() -> Result<(String, StoreUrl), Failure> {
    let file = DefaultFile::of_this_user()?;
    file.create_directory()?;
    file.warn_of_earlier();
    let text = file.url()?;
    let url = StoreUrl::parse(&text).map_err(|error| connect_failure(error.into(), true))?;
    Ok((text, url))
}
