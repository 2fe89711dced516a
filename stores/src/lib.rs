//! Files of this host and of object stores: what is in a folder, and copies that can be read here.
//!
//! **Depends on** files and the protocols of object stores. **Must not depend on** what is in the files.
//!
//! A kind is a [`Store`], in a file of its own and a line of [`KINDS`]: buckets of an object store. What
//! has no scheme is a path of this host.
#![forbid(unsafe_code)]

mod bucket;
mod directory;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use globset::{GlobBuilder, GlobMatcher};

use bucket::Bucket;
use directory::Directory;

/// Kinds of stores: their scheme, what a path of one is like, and how one of a name is opened.
pub const KINDS: [Kind; 1] = [Kind {
    scheme: "s3",
    like: "s3://BUCKET/PATH",
    open: |name| Ok(Arc::new(Bucket::open(name)?)),
}];

/// A kind of store.
pub struct Kind {
    /// What a path of it begins with, before `://`.
    pub scheme: &'static str,
    /// What a path is like.
    pub like: &'static str,
    /// Opens the store of a name.
    pub open: fn(&str) -> Result<Arc<dyn Store>, String>,
}

/// Folders of files, here or elsewhere.
pub trait Store: Send + Sync {
    /// What is in a folder, by name.
    ///
    /// # Errors
    /// A folder that cannot be read, in words without its path.
    fn entries(&self, folder: &Path) -> Result<Vec<Entry>, String>;

    /// Whether there is such a folder.
    ///
    /// # Errors
    /// Where that cannot be found out, in words.
    fn is_folder(&self, path: &Path) -> Result<bool, String>;

    /// Files of these paths to read from, in their order. Errors are in words, one for each file that
    /// cannot be had.
    fn fetch(&self, files: &[PathBuf]) -> Vec<Result<Fetched, String>>;

    /// A path of it in words.
    fn shown(&self, path: &Path) -> String;
}

/// A file or a folder in a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its path.
    pub path: PathBuf,
    /// Whether it is a folder.
    pub is_folder: bool,
    /// When it was last written, where the store knows that.
    pub modified: Option<SystemTime>,
}

/// A file of this host that can be read.
#[derive(Debug)]
pub enum Fetched {
    /// The file itself.
    Own(PathBuf),
    /// A copy, which is removed with this value.
    Copy(tempfile::TempPath),
}

impl Fetched {
    /// Its path on this host.
    pub fn path(&self) -> &Path {
        match self {
            Fetched::Own(path) => path,
            Fetched::Copy(path) => path,
        }
    }
}

/// Stores that were opened, each once.
pub struct Stores {
    here: Arc<dyn Store>,
    /// By scheme and name.
    known: BTreeMap<(String, String), Arc<dyn Store>>,
}

impl Stores {
    /// Paths without a scheme are relative to `base`.
    pub fn new(base: &Path) -> Self {
        Stores { here: Arc::new(Directory(base.to_owned())), known: BTreeMap::new() }
    }

    /// The store of a path or pattern, and the part of it that is within the store.
    ///
    /// # Errors
    /// An unknown scheme, and a store that cannot be opened, in a line.
    pub fn of<'a>(&mut self, text: &'a str) -> Result<(Arc<dyn Store>, &'a str), String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok((self.here.clone(), text));
        };
        let Some(kind) = KINDS.iter().find(|kind| kind.scheme == scheme) else {
            let like: Vec<&str> = KINDS.iter().map(|kind| kind.like).collect();
            return Err(format!(
                "got '{scheme}://', expected a path of this host, or {}",
                like.join(" or ")
            ));
        };
        let (name, within) = rest.split_once('/').unwrap_or((rest, ""));
        let key = (scheme.to_owned(), name.to_owned());
        if !self.known.contains_key(&key) {
            self.known.insert(key.clone(), (kind.open)(name)?);
        }
        Ok((self.known[&key].clone(), within))
    }
}

/// Whether a path is of a store elsewhere.
pub fn is_elsewhere(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.contains("://"))
}

/// A file to read from.
///
/// # Errors
/// A store that cannot be opened and a file that cannot be had, in a line.
pub fn fetch(file: &Path) -> Result<Fetched, String> {
    let text = file.to_string_lossy();
    let (store, within) = Stores::new(Path::new("")).of(&text)?;
    let mut one = store.fetch(&[PathBuf::from(within)]);
    one.pop().unwrap_or_else(|| Err(format!("{text}: no such file")))
}

/// Copies of a folder's own files with this extension, without those of its folders, in a folder that
/// is removed with the value.
///
/// # Errors
/// A folder or file that cannot be had, and what prevents a copy, in a line.
pub fn fetch_folder(folder: &Path, extension: &str) -> Result<tempfile::TempDir, String> {
    let text = folder.to_string_lossy();
    let (store, within) = Stores::new(Path::new("")).of(&text)?;
    let mut files = store.entries(Path::new(within))?;
    files.retain(|e| !e.is_folder && e.path.extension().is_some_and(|e| e == extension));
    let files: Vec<PathBuf> = files.into_iter().map(|entry| entry.path).collect();
    let place = std::env::temp_dir();
    let local = |e: std::io::Error| format!("a copy in {}: {e}", place.display());
    let copies = tempfile::Builder::new().prefix("terrace-").tempdir_in(&place).map_err(local)?;
    for (file, fetched) in files.iter().zip(store.fetch(&files)) {
        let to = copies.path().join(file.file_name().unwrap_or_default());
        let fetched = fetched.map_err(|e| format!("{}: {e}", store.shown(file)))?;
        match fetched {
            Fetched::Own(path) => std::fs::copy(path, to).map(drop).map_err(local)?,
            Fetched::Copy(path) => path.persist(to).map_err(|e| local(e.error))?,
        }
    }
    Ok(copies)
}

/// The folders that a pattern names, by path. Each part of the pattern is of one level.
///
/// # Errors
/// A pattern that cannot be read, and a folder that cannot be listed, in a line.
pub fn matching(store: &dyn Store, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let mut at = vec![PathBuf::from(if pattern.starts_with('/') { "/" } else { "" })];
    // What a store listed as folders are some; what a pattern names without a look may be none.
    let mut known = false;
    for part in pattern.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part.contains("**") {
            return Err(format!(
                "pattern '{pattern}': ** is of any depth, expected * for each level"
            ));
        }
        let listed = std::mem::replace(&mut known, part.contains(['*', '?', '[', '{']));
        if !known {
            at.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        let glob = glob(part)?;
        let mut next = Vec::new();
        for path in at {
            // What is not there matches nothing.
            if !listed && !path.as_os_str().is_empty() && !store.is_folder(&path)? {
                continue;
            }
            let error = |e: String| format!("{}: {e}", store.shown(&path));
            next.extend(store.entries(&path).map_err(error)?.into_iter().filter(|entry| {
                let name = entry.path.file_name().unwrap_or_default().to_string_lossy();
                entry.is_folder && !name.starts_with('.') && glob.is_match(&*name)
            }));
        }
        at = next.into_iter().map(|entry| entry.path).collect();
    }
    if !known {
        let mut folders = Vec::new();
        for path in at {
            if store.is_folder(&path)? {
                folders.push(path);
            }
        }
        at = folders;
    }
    at.sort();
    Ok(at)
}
/// A pattern of a path, with `*`, `?`, `[...]`, `{a,b}` and `**`; a slash at its ends means nothing.
///
/// # Errors
/// A pattern that cannot be read, in a line.
pub fn glob(text: &str) -> Result<GlobMatcher, String> {
    let built = GlobBuilder::new(text.trim_matches('/')).literal_separator(true).build();
    built.map(|glob| glob.compile_matcher()).map_err(|e| {
        format!("pattern '{text}': {}; expected a path with *, ?, [...] or **", e.kind())
    })
}
