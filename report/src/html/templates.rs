//! The templates of all pages: one frame, and its contents. Part of the program and tested with it.

use minijinja::{AutoEscape, Environment};
use serde::Serialize;

use super::picture::escape;

/// Templates by name; those that others use come first.
const TEMPLATES: [(&str, &str); 5] = [
    ("base.html", include_str!("base.html")),
    ("findings.html", include_str!("findings.html")),
    ("report.html", include_str!("report.html")),
    ("page.html", include_str!("page.html")),
    ("rack.html", include_str!("rack/rack.html")),
];

/// The template of this name with this content. Names from the results are escaped.
pub(super) fn filled(name: &str, content: impl Serialize) -> String {
    fill(name, content).unwrap_or_else(|e| {
        format!("<!doctype html><p>The report could not be made: {}", escape(&e.to_string()))
    })
}

fn fill(name: &str, content: impl Serialize) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    for (name, text) in TEMPLATES {
        environment.add_template(name, text)?;
    }
    environment.get_template(name)?.render(content)
}
