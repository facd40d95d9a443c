//! What a page asks for: the view, its order, its filter and its part.

use crate::fleet::order::LockOrder;
use crate::glob::Glob;
use clap::ValueEnum as _;
use leasehold::LockName;
use percent_encoding::percent_decode_str;

/// The rows of one part of a list.
pub(super) const PAGE: usize = 100;
/// A longer filter matches no name.
const MAX_FILTER: usize = 1024;

/// What a stream sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum View {
    Locks(ListQuery),
    Sessions(ListQuery),
    Graph,
    Lock(LockName),
}

/// A part of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ListQuery {
    pub(super) sort: LockOrder,
    pub(super) filter: Filter,
    /// Counted from 0.
    pub(super) page: usize,
}

/// A text within names, or a pattern for the whole if it has `*` or `?`. Upper and lower case are the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Filter(Option<Glob>);

impl Filter {
    pub(super) fn new(text: &str) -> Self {
        if text.is_empty() {
            return Self(None);
        }
        let text: String = text.chars().take(MAX_FILTER).collect::<String>().to_lowercase();
        let is_pattern = text.contains(['*', '?']);
        Self(Some(Glob::new(&if is_pattern { text } else { format!("*{}*", text.replace('\\', "\\\\")) })))
    }

    pub(super) fn matches<'a>(&self, mut texts: impl Iterator<Item = &'a str>) -> bool {
        self.0.as_ref().is_none_or(|glob| texts.any(|text| glob.matches(&text.to_lowercase())))
    }
}

impl View {
    /// Parses the query of a URL; an unknown order or part is the first. `Err` says what cannot be shown.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let (mut view, mut name, mut list) = (String::new(), String::new(), ListQuery::default());
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode_str(value).decode_utf8().map_err(|_| "not UTF-8 text".to_owned())?;
            match key {
                "view" => view = value.into_owned(),
                "name" => name = value.into_owned(),
                "sort" => list.sort = LockOrder::from_str(&value, false).unwrap_or_default(),
                "filter" => list.filter = Filter::new(&value),
                "page" => list.page = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        match view.as_str() {
            "locks" => Ok(Self::Locks(list)),
            "sessions" => Ok(Self::Sessions(list)),
            "graph" => Ok(Self::Graph),
            "lock" => LockName::new(name).map(Self::Lock).map_err(|error| error.to_string()),
            _ => Err("there is no such view".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_parsed() {
        let list = |sort, filter: &str, page| ListQuery { sort, filter: Filter::new(filter), page };
        let check = |query, view| assert_eq!(View::parse(query), Ok(view), "{query}");
        check("view=locks", View::Locks(list(LockOrder::Waiters, "", 0)));
        check("view=locks&sort=hold&filter=a%26b*&page=3", View::Locks(list(LockOrder::Hold, "a&b*", 3)));
        check("view=sessions&page=-1", View::Sessions(ListQuery::default()));
        check("view=lock&name=orders%2F42", View::Lock(LockName::new("orders/42").expect("a name")));
        for query in ["", "view=other", "view=lock", "view=lock&name=", "view=lock&name=%ff"] {
            assert!(View::parse(query).is_err(), "{query}");
        }
    }

    #[test]
    fn a_filter_is_a_part_of_a_name_or_a_pattern() {
        let matches = |filter, text| Filter::new(filter).matches([text].into_iter());
        assert!(matches("", "any"));
        assert!(matches("ERS/4", "orders/42"));
        assert!(!matches("ers/4*", "orders/42"));
        assert!(matches("order?/*", "orders/42"));
        assert!(matches("a\\b", "xa\\bx"));
    }
}
