//! What `tidegate run` says before the program starts: that it will not work on the forwarders'
//! files, if that can be seen.

use super::launcher;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use tidegate_client::opened::Program;

/// The place that a program is started for.
pub struct Place<'a> {
    /// The exported directory.
    pub export: &'a Path,
    /// Where its files are mounted.
    pub point: &'a Path,
    /// Where the program will work.
    pub here: &'a Path,
}

impl Place<'_> {
    /// The line to say, if there is one. `not_redirected`: why the program's names are left as they
    /// are, if they are.
    pub fn notice(&self, arguments: &[String], not_redirected: Option<&str>) -> Option<String> {
        let (export, point) = (self.export.display(), self.point.display());
        let mut named = arguments.iter().filter(|it| self.names_export(it));
        if let Some(argument) = named.next() {
            let why = not_redirected?;
            return Some(format!(
                "`{argument}` names the directory {export} itself, and {why}: what the program \
                 does there goes past the forwarders; name it below {point} ($TIDEGATE_MOUNT)"
            ));
        }
        // The program's own name is for the kernel, which is not led.
        let mut others = arguments.iter().skip(1);
        if let Some(argument) = others.find(|it| self.leads_to_export(it)) {
            return Some(format!(
                "`{argument}` leads to the directory {export} by another name: what the program \
                 does there goes past the forwarders; name it below {point} ($TIDEGATE_MOUNT)"
            ));
        }
        if self.is_inside() || arguments.iter().any(|it| self.knows_mount(it)) {
            return None;
        }
        let here = self.here.display();
        Some(format!(
            "the working directory {here} is not below {export}, so relative names go past the \
             forwarders; work below {export}, or name files below {point} ($TIDEGATE_MOUNT)"
        ))
    }

    /// Whether the program is told where the files are.
    fn knows_mount(&self, argument: &str) -> bool {
        argument.contains("TIDEGATE_MOUNT") || argument.contains(&*self.point.to_string_lossy())
    }

    /// Whether an argument, or a part of it, is a path of the exported directory, but not of the
    /// mount in it.
    fn names_export(&self, argument: &str) -> bool {
        let is_between = |c: char| "=,:'\" ;()<>\n\t".contains(c);
        // A name may have blanks.
        let mut parts = whole(argument).chain(argument.split(is_between));
        parts.any(|part| self.is_path(part) && self.is_export(&plain(&self.here.join(part))))
    }

    /// Whether an argument, or its value, is a path that gets there by a link.
    fn leads_to_export(&self, argument: &str) -> bool {
        whole(argument)
            .any(|part| self.is_path(part) && self.is_export(&real(&self.here.join(part))))
    }

    fn is_path(&self, part: &str) -> bool {
        let is_relative = || part.contains('/') || self.here.join(part).exists();
        part.starts_with('/') || (!self.is_inside() && !part.is_empty() && is_relative())
    }

    fn is_export(&self, path: &Path) -> bool {
        path.starts_with(self.export) && !path.starts_with(self.point)
    }

    fn is_inside(&self) -> bool {
        self.here.starts_with(self.export) || self.here.starts_with(self.point)
    }
}

/// The argument, and what is after its first `=`.
fn whole(argument: &str) -> impl Iterator<Item = &str> {
    let value = argument.split_once('=').map(|(_, value)| value);
    std::iter::once(argument).chain(value)
}

/// The path without links, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let mut ways = path.ancestors();
    let found = ways.find_map(|way| Some((way, std::fs::canonicalize(way).ok()?)));
    match found {
        Some((way, found)) => {
            let rest = path.strip_prefix(way).unwrap_or(Path::new(""));
            plain(&found.join(rest))
        }
        None => plain(path),
    }
}

/// The path without `.` and `..`, as if there were no links.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// Bytes of a program that are looked at.
const HEAD: u64 = 4096;

/// Whether the program that is found by this name can load the short-cut.
pub fn program(name: &str) -> Program {
    let look = || -> Option<Program> {
        let path = launcher::found(name)?;
        let file = std::fs::File::open(&path).ok()?;
        let found = file.metadata().ok()?;
        let mut head = Vec::new();
        file.take(HEAD).read_to_end(&mut head).ok()?;
        let kind = Program::of_head(&head);
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        let gets_user = found.mode() & 0o4000 != 0 && found.uid() != user.as_raw();
        let gets_group = found.mode() & 0o2010 == 0o2010 && found.gid() != group.as_raw();
        let gets_rights = !user.is_root() && has_capabilities(&path);
        match kind == Program::Loads && (gets_user || gets_group || gets_rights) {
            true => Some(Program::Privileged),
            false => Some(kind),
        }
    };
    look().unwrap_or(Program::Loads)
}

fn has_capabilities(path: &Path) -> bool {
    let mut room = [0u8; 64];
    rustix::fs::getxattr(path, "security.capability", &mut room[..]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(here: &str, argument: &str, why: Option<&str>) -> Option<String> {
        let place = Place {
            export: Path::new("/work/data"),
            point: Path::new("/run/mnt"),
            here: Path::new(here),
        };
        place.notice(&["prog".to_string(), argument.to_string()], why)
    }

    #[test]
    fn what_goes_past_is_said_and_what_does_not_is_not() {
        let off = Some("redirection is off");
        for (here, argument, why) in [
            ("/work/data/a", "f", off),
            ("/run/mnt/a", "of=f", off),
            ("/work/data", "../other/f", None),
            ("/home", "of=/run/mnt/f", off),
            ("/home", "dd of=$TIDEGATE_MOUNT/f", off),
            ("/home", "of=/work/data/f", None),
            ("/work", "--out=data/f", None),
        ] {
            assert_eq!(said(here, argument, why), None, "{here} {argument}");
        }
        for (here, argument, why) in [
            ("/home", "f", None),
            ("/work/data2", "f", None),
            ("/home", "of=/work/data2/f", None),
            ("/home", "", off),
        ] {
            let line = said(here, argument, why).expect("it is said");
            assert!(line.contains("working directory"), "{line}");
        }
        for (here, argument) in [
            ("/home", "of=/work/data/f"),
            ("/work/data", "/work/data/f"),
            ("/run/mnt", "cp f '/work/data/g'"),
            ("/work", "--out=data/f"),
            ("/work/x", "../data/f"),
        ] {
            let line = said(here, argument, off).expect("it is said");
            assert!(line.contains("redirection is off"), "{line}");
        }
    }

    #[test]
    fn this_program_loads_libraries() {
        let own = std::env::current_exe().expect("it is known");
        assert_eq!(program(own.to_str().expect("text")), Program::Loads);
        assert_eq!(program("/nowhere/at/all"), Program::Loads);
    }
}
