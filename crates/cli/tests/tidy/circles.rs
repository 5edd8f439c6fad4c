//! Refuses circles among the files of a crate.
//!
//! Modules beside each other, each with all that lies below it, use each other in one direction
//! only. A file and those below it do not count: a parent may name its children, and they what it
//! defines. `use` and paths that begin with `crate`, `super` or `self` count, outside of tests;
//! what a file re-exports counts as the file that defines it.

use super::{Source, report, sources};
use std::collections::{BTreeMap, BTreeSet};

/// A module's place in its crate: empty for `lib.rs` and `main.rs`.
type Module = Vec<String>;

/// What uses what: of each two modules, one place that shows it.
type Uses = BTreeMap<String, BTreeMap<String, String>>;

/// The files of one crate.
struct Crate {
    /// The code of each, without comments and tests.
    files: BTreeMap<Module, String>,
    /// The paths of names that a file re-exports.
    exports: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
}

impl Crate {
    /// Of the files whose paths below `src/` are given.
    fn new<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Crate {
        let mut found = Crate {
            files: BTreeMap::new(),
            exports: BTreeMap::new(),
        };
        for (path, text) in files {
            let path = path.trim_end_matches(".rs");
            let module: Module = match path {
                "lib" | "main" => Vec::new(),
                path => path.split('/').map(str::to_owned).collect(),
            };
            if module.iter().any(|part| part == "tests") {
                continue;
            }
            let code = code(text);
            let mut exports = BTreeMap::new();
            for (at, _) in code.match_indices("pub") {
                let rest = &code[at + "pub".len()..];
                let rest = match rest.strip_prefix('(') {
                    Some(rest) => rest.split_once(')').map_or("", |(_, rest)| rest),
                    None => rest,
                };
                if let Some(tree) = rest.strip_prefix(" use ") {
                    exports.extend(paths(tree).into_iter().map(|(path, name)| (name, path)));
                }
            }
            found.files.insert(module.clone(), code);
            found.exports.insert(module, exports);
        }
        found
    }

    /// Where in the crate a path leads that stands in this file.
    fn absolute(&self, from: &[String], path: &[String]) -> Option<Module> {
        let supers = path.iter().take_while(|part| *part == "super").count();
        let base = match path[0].as_str() {
            "crate" => return Some(path[1..].to_vec()),
            "self" => return Some([from, &path[1..]].concat()),
            "super" => from.get(..from.len().checked_sub(supers)?)?,
            child => {
                let below = [from, &[child.to_owned()]].concat();
                return self
                    .files
                    .contains_key(&below)
                    .then(|| [from, path].concat());
            }
        };
        Some([base, &path[supers..]].concat())
    }

    /// The file that defines what a path leads to.
    fn defines(&self, path: &[String], exports_left: u8) -> Module {
        let is_file = |len: &usize| self.files.contains_key(&path[..*len]);
        let len = (0..=path.len()).rev().find(is_file).unwrap_or(0);
        let module = path[..len].to_vec();
        let exported = path.get(len).and_then(|name| {
            let to = self.exports.get(&module)?.get(name)?;
            self.absolute(&module, &[to, &path[len + 1..]].concat())
        });
        match exported {
            Some(to) if exports_left > 0 && to != path => self.defines(&to, exports_left - 1),
            _ => module,
        }
    }

    /// What uses what among the modules beside each other, by the module they lie in.
    fn uses(&self) -> BTreeMap<Module, Uses> {
        let mut levels: BTreeMap<Module, Uses> = BTreeMap::new();
        for (from, code) in &self.files {
            let starts = ["crate::", "super::", "self::"];
            let starts = starts.iter().flat_map(|start| code.match_indices(start));
            for (at, _) in starts {
                let within =
                    code[..at].ends_with(|c: char| c.is_alphanumeric() || "_:$".contains(c));
                if within {
                    continue;
                }
                for (path, _) in paths(&code[at..]) {
                    let Some(to) = self.absolute(from, &path) else {
                        continue;
                    };
                    let to = self.defines(&to, 8);
                    let same = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                    if same < from.len() && same < to.len() {
                        let level = levels.entry(from[..same].to_vec()).or_default();
                        let uses = level.entry(from[same].clone()).or_default();
                        let place = format!("{}.rs: {}", from.join("/"), path.join("::"));
                        uses.entry(to[same].clone()).or_insert(place);
                    }
                }
            }
        }
        levels
    }
}

/// A file without comments, texts and what stands behind the first `#[cfg(test)]` of a module.
fn code(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    let lines = text[..end].lines().map(|line| {
        let line = line.split("//").next().unwrap_or_default();
        let parts = line.split('"').step_by(2);
        parts.collect::<Vec<_>>().join("\"\"")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The paths of a `use` or an expression that begins here, and the name that each gives.
fn paths(text: &str) -> Vec<(Vec<String>, String)> {
    fn tree<'a>(
        mut rest: &'a str,
        before: &[String],
        found: &mut Vec<(Vec<String>, String)>,
    ) -> &'a str {
        rest = rest.trim_start();
        if let Some(mut inner) = rest.strip_prefix('{') {
            loop {
                inner = inner.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
                if let Some(after) = inner.strip_prefix('}') {
                    return after;
                }
                let after = tree(inner, before, found);
                if after.len() == inner.len() {
                    return after;
                }
                inner = after;
            }
        }
        let word = |text: &str| {
            let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
            end.unwrap_or(text.len())
        };
        let end = word(rest);
        if end == 0 {
            return rest.strip_prefix('*').unwrap_or(rest);
        }
        let mut name = rest[..end].to_owned();
        let path = [before, std::slice::from_ref(&name)].concat();
        rest = &rest[end..];
        let goes_on =
            |next: &str| next.starts_with(|c: char| c.is_alphabetic() || "_{*".contains(c));
        if let Some(next) = rest.strip_prefix("::").filter(|next| goes_on(next)) {
            if let Some(next) = next.strip_prefix('*') {
                found.push((path, "*".to_owned()));
                return next;
            }
            return tree(next, &path, found);
        }
        if let Some(alias) = rest.strip_prefix(" as ") {
            let end = word(alias);
            name = alias[..end].to_owned();
            rest = &alias[end..];
        }
        found.push((path, name));
        rest
    }
    let mut found = Vec::new();
    tree(text, &[], &mut found);
    found
}

/// The modules that use each other in circles: groups, each of which reaches all of itself.
fn circles(uses: &Uses) -> Vec<BTreeSet<&str>> {
    let reached = |from: &str| {
        let mut found = BTreeSet::new();
        let mut look = vec![from];
        while let Some(at) = look.pop() {
            for to in uses.get(at).into_iter().flat_map(BTreeMap::keys) {
                if found.insert(to.as_str()) {
                    look.push(to);
                }
            }
        }
        found
    };
    let reach: BTreeMap<&str, _> = uses.keys().map(|at| (at.as_str(), reached(at))).collect();
    let mut groups = BTreeSet::new();
    for (at, to) in &reach {
        if to.contains(at) {
            let back = |other: &&str| reach.get(*other).is_some_and(|to| to.contains(at));
            groups.insert(to.iter().copied().filter(back).collect());
        }
    }
    groups.into_iter().collect()
}

/// The circles of all crates: the folder below `crates`, the modules, and places that show them.
fn all_circles(sources: &[Source]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is("rs")) {
        let path = source.path.strip_prefix("crates/");
        if let Some((name, file)) = path.and_then(|path| path.split_once("/src/")) {
            crates.entry(name).or_default().push((file, &source.text));
        }
    }
    let mut found = Vec::new();
    for (name, files) in crates {
        for (level, uses) in Crate::new(files.into_iter()).uses() {
            let folder = [&[name.to_owned()], &level[..]].concat().join("/");
            for modules in circles(&uses) {
                let names: Vec<&str> = modules.iter().copied().collect();
                found.push(format!("{folder}: {}", names.join(", ")));
                let inside = |name: &String| modules.contains(name.as_str());
                for (_, to) in uses.iter().filter(|(from, _)| inside(from)) {
                    let places = to.iter().filter(|(to, _)| inside(to));
                    found.extend(places.map(|(to, place)| format!("    {place} ({to})")));
                }
            }
        }
    }
    found
}

#[test]
fn files_use_each_other_in_one_direction() {
    report(
        all_circles(&sources()),
        "modules use each other in a circle; move what one needs of the other below both",
    );
}

#[test]
fn circles_are_found_at_their_level() {
    let files = [
        (
            "lib.rs",
            "mod a;\nmod b;\nmod c;\npub use b::{Two, deep::Three as Renamed};\n",
        ),
        ("a.rs", "mod one;\nuse crate::{b::{self, Two}, c};\n"),
        (
            "a/one.rs",
            "use super::Parent;\nfn f() -> crate::Renamed { \"crate::c\" }\n",
        ),
        ("b.rs", "pub mod deep;\n// crate::a\npub struct Two;\n"),
        ("b/deep.rs", "fn g(_: super::super::a::Parent) {}\n"),
        ("c.rs", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
    ];
    let uses = Crate::new(files.into_iter()).uses();
    let top = &uses[&Vec::new()];
    assert_eq!(circles(top), [BTreeSet::from(["a", "b"])]);
    assert_eq!(top["b"]["a"], "b/deep.rs: super::super::a::Parent");
    assert!(top["a"].contains_key("c") && !top.contains_key("c"));
    assert_eq!(
        uses.len(),
        1,
        "a child and its parent are no circle: {uses:?}"
    );
}
