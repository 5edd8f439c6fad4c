//! Writes the files of a report: they never replace another kind of file, and are written whole or
//! not at all.

use crate::page::GENERATOR;
use std::io::{Error, ErrorKind, Read};
use std::path::{Path, PathBuf};
use tidegate_cli::fail::Fail;

/// The first line of every Markdown document, by which the program tells one from other files.
pub const MARK: &str = "<!-- Made by `tidegate report`. -->";
/// Stands at the beginning of every figure.
const FIGURE: &str = "class=\"tg-figure\"";
/// All marks lie within so many bytes.
const HEAD_BYTES: u64 = 2048;

/// What to write, and where.
pub enum Output {
    Html(PathBuf),
    Markdown(PathBuf),
    /// A folder.
    Svg(PathBuf),
}

impl Output {
    /// Checks whether the report can be written there, as far as one can know before; makes the
    /// folder of figures.
    pub fn check(&self, force: bool) -> Result<(), Fail> {
        match self {
            Output::Html(path) | Output::Markdown(path) => {
                let parent = path
                    .parent()
                    .filter(|parent| !parent.as_os_str().is_empty());
                if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
                    return Err(Fail::usage(format!(
                        "{}: there is no folder {}; make it, or name another place",
                        path.display(),
                        parent.display()
                    )));
                }
                may_replace(path, force)
            }
            Output::Svg(folder) => std::fs::create_dir_all(folder)
                .map_err(|error| Fail::usage(format!("{}: {error}", folder.display()))),
        }
    }
}

/// Writes a file: beside its place first, so that a disk that fills up leaves what was there.
pub fn write(path: &Path, text: &str, force: bool) -> Result<(), Fail> {
    may_replace(path, force)?;
    let wrong = |error: Error| {
        let advice = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "; make room, or name another place"
            }
            _ => "",
        };
        Fail::runtime(format!("{}: {error}{advice}", path.display()))
    };
    // Devices and pipes are written, not replaced; so is what a link points at.
    let is_plain = path.symlink_metadata().is_ok_and(|data| data.is_file());
    if path.exists() && !is_plain {
        return std::fs::write(path, text).map_err(wrong);
    }
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path));
    written.map_err(|error| {
        // It may not be there.
        let _ = std::fs::remove_file(&part);
        wrong(error)
    })
}

/// Only reports are replaced. Devices and pipes have nothing to lose.
fn may_replace(path: &Path, force: bool) -> Result<(), Fail> {
    let place = path.display();
    if path.is_dir() {
        return Err(Fail::usage(format!("{place} is a folder; name a file")));
    }
    if force || !path.is_file() {
        return Ok(());
    }
    let file = std::fs::File::open(path);
    let mut head = Vec::new();
    let read = file.and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    read.map_err(|error| Fail::usage(format!("{place}: {error}")))?;
    let head = String::from_utf8_lossy(&head);
    let is_report = head.is_empty()
        || head.contains(GENERATOR)
        || head.starts_with(MARK)
        || (head.starts_with("<svg") && head.contains(FIGURE));
    match is_report {
        true => Ok(()),
        false => Err(Fail::usage(format!(
            "{place} is there and is no report; name another file, or replace it with --force"
        ))),
    }
}
