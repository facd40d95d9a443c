//! The Markdown files of the repository.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A Markdown file of the repository.
#[derive(Debug, Clone)]
pub struct Document {
    /// Its path from the root of the repository, with `/`.
    pub path: String,
    /// What it contains.
    pub text: String,
}

impl Document {
    /// Whether it is a page of the book.
    pub fn is_page(&self) -> bool {
        self.path.starts_with("docs/") && self.path != "docs/SUMMARY.md"
    }
}

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// All Markdown files below a directory, in the order of their paths. Hidden directories and what tools build are left
/// out.
pub fn documents(root: &Path) -> io::Result<Vec<Document>> {
    let (mut directories, mut documents) = (vec![PathBuf::new()], Vec::new());
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root.join(&directory))? {
            let name = entry?.file_name();
            let path = directory.join(&name);
            let name = name.to_string_lossy();
            let is_left_out = name.starts_with('.') || ["target", "node_modules"].contains(&&*name);
            if is_left_out {
                continue;
            }
            if root.join(&path).is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(root.join(&path))?;
                documents.push(Document { path: path.display().to_string(), text });
            }
        }
    }
    documents.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(documents)
}
