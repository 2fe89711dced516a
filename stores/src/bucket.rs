//! Buckets of an object store that is asked as Amazon's S3 is.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, ObjectStoreExt, RetryConfig};
use tokio::runtime::Runtime;

use crate::{Entry, Fetched, Store};

/// Bytes of a file, at most: a history of 64 scans of a terabyte in pages of 4 KB, not compressed, has
/// 2 GiB.
const MOST_BYTES: u64 = 4 << 30;
/// Files that are fetched at the same time.
const AT_ONCE: usize = 8;
/// How long an answer, or more of it, is waited for, and a request that fails is repeated at most.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a bucket that cannot be listed should be.
const EXPECTED: &str = "expected a bucket that the AWS_ variables of the environment open";

/// A bucket.
pub struct Bucket {
    name: String,
    /// Who is asked for it.
    asked: String,
    store: Box<dyn ObjectStore>,
    runtime: Runtime,
}

impl Bucket {
    /// The bucket of this name, by the environment's `AWS_` variables: endpoint, region, credentials.
    ///
    /// # Errors
    /// A name or a variable that cannot be used, in words.
    pub fn open(name: &str) -> Result<Self, String> {
        if name.is_empty() || name.contains(['*', '?', '[', '{']) {
            return Err(format!("got the bucket '{name}', expected the name of one"));
        }
        // A second bucket finds the first one's.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retry = RetryConfig {
            backoff: BackoffConfig { max_backoff: PATIENCE / 10, ..BackoffConfig::default() },
            max_retries: 5,
            retry_timeout: PATIENCE,
        };
        let builder = AmazonS3Builder::from_env().with_bucket_name(name);
        let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint]
            .iter()
            .find_map(|key| builder.get_config_value(key));
        if let Some(url) = &endpoint {
            let known = reqwest::Url::parse(url)
                .is_ok_and(|u| u.has_host() && (u.scheme() == "https" || u.scheme() == "http"));
            if !known {
                return Err(format!("got the endpoint '{url}', expected one as https://HOST:PORT"));
            }
        }
        // Whoever names an endpoint without encryption wants none.
        let plain = endpoint.as_ref().is_some_and(|url| url.starts_with("http://"));
        // A file may take as long as it takes, as long as more of it comes.
        let seconds = format!("{}s", PATIENCE.as_secs());
        let options = [
            (ClientConfigKey::AllowHttp, plain.to_string()),
            (ClientConfigKey::ConnectTimeout, seconds.clone()),
            (ClientConfigKey::ReadTimeout, seconds),
            (ClientConfigKey::Timeout, "1day".to_owned()),
        ];
        let builder = options.into_iter().fold(builder, |builder, (key, value)| {
            builder.with_config(AmazonS3ConfigKey::Client(key), value)
        });
        let store = builder.with_retry(retry).build();
        let asked = endpoint.unwrap_or_else(|| "Amazon S3".to_owned());
        Self::over(name, asked, Box::new(store.map_err(words)?))
    }

    /// The bucket of this name in a store.
    ///
    /// # Errors
    /// Where the threads that fetch cannot be made.
    fn over(name: &str, asked: String, store: Box<dyn ObjectStore>) -> Result<Self, String> {
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|e| format!("threads that fetch: {e}"))?;
        Ok(Bucket { name: name.to_owned(), asked, store, runtime: threads })
    }

    /// An error of the store, in words.
    fn error(&self, error: object_store::Error) -> String {
        format!("{} (from {})", words(error), self.asked)
    }

    async fn copy(&self, file: &Path) -> Result<Fetched, String> {
        let found = self.store.get(&key(file)?).await.map_err(|e| self.error(e))?;
        let bytes = found.meta.size;
        if bytes > MOST_BYTES {
            return Err(format!("{bytes} bytes, expected at most {MOST_BYTES}"));
        }
        let local =
            |e: std::io::Error| format!("a copy in {}: {e}", std::env::temp_dir().display());
        let mut copy = tempfile::Builder::new().prefix("terrace-").tempfile().map_err(local)?;
        let mut stream = found.into_stream();
        while let Some(part) = stream.next().await {
            copy.write_all(&part.map_err(|e| self.error(e))?).map_err(local)?;
        }
        Ok(Fetched::Copy(copy.into_temp_path()))
    }
}

impl Store for Bucket {
    fn entries(&self, folder: &Path) -> Result<Vec<Entry>, String> {
        let prefix = key(folder)?;
        let found = self.runtime.block_on(self.store.list_with_delimiter(Some(&prefix)));
        let found = found.map_err(|e| format!("{}; {EXPECTED}", self.error(e)))?;
        let entry = |key: Key, is_folder, modified| Entry {
            path: PathBuf::from(key.as_ref()),
            is_folder,
            modified,
        };
        let folders = found.common_prefixes.into_iter().map(|key| entry(key, true, None));
        let files = found.objects.into_iter();
        let files = files.map(|o| entry(o.location, false, Some(o.last_modified.into())));
        let mut entries: Vec<Entry> = folders.chain(files).collect();
        entries.sort();
        Ok(entries)
    }

    fn is_folder(&self, path: &Path) -> Result<bool, String> {
        let prefix = key(path)?;
        let first = async { self.store.list(Some(&prefix)).next().await };
        match self.runtime.block_on(first) {
            None => Ok(false),
            Some(Ok(_)) => Ok(true),
            Some(Err(e)) => Err(format!("{}: {}; {EXPECTED}", self.shown(path), self.error(e))),
        }
    }

    fn fetch(&self, files: &[PathBuf]) -> Vec<Result<Fetched, String>> {
        let copies = futures_util::stream::iter(files).map(|file| self.copy(file));
        self.runtime.block_on(copies.buffered(AT_ONCE).collect())
    }

    fn shown(&self, path: &Path) -> String {
        format!("s3://{}/{}", self.name, path.display())
    }
}

/// The key of a path.
fn key(path: &Path) -> Result<Key, String> {
    Key::parse(path.to_string_lossy()).map_err(words)
}

/// What a store answered, or else the error and its causes, in a line. Times and counts of tries, which
/// differ from run to run, are left out.
fn words(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next: Option<&dyn std::error::Error> = error.source();
    while let Some(cause) = next {
        let own = cause.to_string();
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        next = cause.source();
    }
    let tag = |name: &str| {
        let from = text.split_once(&format!("<{name}>"))?.1;
        Some(from.split_once(&format!("</{name}>"))?.0)
    };
    let short = match (tag("Code"), tag("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        _ => text.rsplit_once(" - ").map_or(&*text, |(_, last)| last).to_owned(),
    };
    short.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching;

    fn bucket(keys: &[&str]) -> Bucket {
        let bucket = Bucket::over(
            "fleet",
            "a test".to_owned(),
            Box::new(object_store::memory::InMemory::new()),
        )
        .unwrap();
        for key in keys {
            let (key, text) = (Key::parse(key).unwrap(), key.to_string());
            bucket.runtime.block_on(bucket.store.put(&key, text.into())).unwrap();
        }
        bucket
    }

    #[test]
    fn patterns_name_folders_of_a_bucket_level_by_level() {
        let bucket = bucket(&[
            "a/web-1/x.trec",
            "a/web-2/x.trec",
            "a/web-3",
            "a/web-1/deeper/y.trec",
            "b/web-1/x.trec",
            "a/.hidden/x.trec",
        ]);
        let found = |pattern: &str| -> Vec<String> {
            let found = matching(&bucket, pattern).unwrap();
            found.iter().map(|path| path.display().to_string()).collect()
        };
        assert_eq!(found("a/web-*"), ["a/web-1", "a/web-2"]);
        assert_eq!(found("{a,b}/web-1"), ["a/web-1", "b/web-1"]);
        assert_eq!(found("*/*"), ["a/web-1", "a/web-2", "b/web-1"]);
        assert_eq!(found("a/web-1"), ["a/web-1"]);
        assert!(found("c/*").is_empty() && found("c/web-1").is_empty());
        assert!(found("a/web-").is_empty(), "the beginning of a name is no folder");
        assert_eq!(bucket.shown(Path::new("a/web-1")), "s3://fleet/a/web-1");
    }

    #[test]
    fn copies_are_in_the_order_asked_for_and_go_with_their_last_use() {
        let keys: Vec<String> = (0..20).map(|n| format!("h/{n:02}.trec")).collect();
        let bucket = bucket(&keys.iter().map(String::as_str).collect::<Vec<_>>());
        let mut files: Vec<PathBuf> = keys.iter().map(PathBuf::from).collect();
        files.insert(3, PathBuf::from("h/gone.trec"));
        let mut copies = bucket.fetch(&files);
        let gone = copies.remove(3).unwrap_err();
        assert!(gone.contains("h/gone.trec") && !gone.contains('\n'), "{gone}");
        let mut paths = Vec::new();
        for (copy, key) in copies.into_iter().zip(&keys) {
            let copy = copy.unwrap();
            assert_eq!(std::fs::read_to_string(copy.path()).unwrap(), *key);
            paths.push(copy.path().to_owned());
        }
        assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
    }
}
